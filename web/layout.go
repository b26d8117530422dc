package web

import (
	"strconv"
	"strings"
)

func clientURL() string {
	if Assets().Built() {
		return Assets().URL("app.wasm")
	}
	return ""
}

func topbarTitle(p Page) string {
	if p.Title != "" {
		return p.Title
	}
	return "Covey"
}

func percent(n int) string { return strconv.Itoa(min(max(n, 0), 100)) + " %" }

func splitKeys(keys string) []string { return strings.Fields(keys) }

package daemon

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// smallSet is a probe set of three topics that a test can afford: per topic six open and two sealed texts, each a
// cluster of its own.
func smallSet(t *testing.T) string {
	t.Helper()
	topics := map[string][]string{
		"cooking": {"Stir the onions in butter", "Bake the bread until golden", "Whisk two eggs with sugar", "Simmer the soup for an hour", "Salt the water, then the pasta", "Roast the carrots with oil", "Knead the dough by hand", "Grate the cheese over the rice"},
		"code":    {"func main() { return 0 }", "for i := range list { sum += i }", "if err != nil { return err }", "import numpy as np; np.zeros(3)", "SELECT name FROM users WHERE id = 1", "while (x < 10) { x++; }", "def add(a, b): return a + b", "class Node { int value; Node next; }"},
		"law":     {"The tenant shall pay the rent", "The court denied the motion", "This contract is void if signed", "The defendant waived the right", "Section two of the act applies", "The plaintiff seeks damages", "The parties agree to arbitration", "The statute bars the claim"},
	}
	var b strings.Builder
	for _, topic := range []string{"cooking", "code", "law"} {
		for i, text := range topics[topic] {
			split := "open"
			if i >= 6 {
				split = "sealed"
			}
			line, err := json.Marshal(map[string]string{"id": fmt.Sprintf("%s-%d", topic, i), "topic": topic, "split": split, "text": text + ". " + text + "."})
			if err != nil {
				t.Fatal(err)
			}
			b.Write(line)
			b.WriteString("\n")
		}
	}
	return b.String()
}

func TestExpertsLightUpWhileAnotherTabGenerates(t *testing.T) {
	d := modelDaemon(t)
	open := openBrowser(t)
	chat, board := open(), open()
	chat.do(chromedp.Navigate(d.Link()))
	chat.live()

	board.do(chromedp.EmulateViewport(1280, 900))
	board.theme("light")
	board.do(chromedp.Navigate(d.base + "/experts"))
	board.live()
	board.until(`document.querySelector(".legend-step")`)

	chat.do(chromedp.SendKeys(chromedp.CSS("#draft"), "Write a long story about a lighthouse."))
	chat.press("Enter", "Enter", 13, 0)
	chat.until(running)
	board.until(`document.getElementById("map-live").hasAttribute("data-on")`)
	board.until(`Number(document.getElementById("experts").dataset.lit) >= 29`) // experts of every layer
	board.until(`document.querySelectorAll(".legend-step").length > 3`)
	board.shoot("map-live-light")
	board.theme("dark")
	board.until(`document.querySelectorAll(".legend-step").length > 4`)
	board.shoot("map-live-dark")

	// By keyboard: the cursor, the card, the panel.
	board.do(chromedp.Focus(chromedp.CSS("#map-over")))
	for range 3 {
		board.press("ArrowDown", "ArrowDown", 40, 0)
		board.press("ArrowRight", "ArrowRight", 39, 0)
	}
	board.until(`/Layer \d+, expert 3/.test(document.getElementById("map-where").innerText)`)
	board.press("Enter", "Enter", 13, 0)
	board.until(`/expert 3/.test(document.querySelector("#map-panel h2")?.innerText)`)
	board.until(`/^#l\d+e3$/.test(location.hash)`)
	board.shoot("map-panel-dark")

	// Search dims the rest.
	board.do(chromedp.SendKeys(chromedp.CSS("#map-search"), "l12 e5"))
	board.until(`/Layer 12, expert 5/.test(document.getElementById("map-card").innerText)`)
	t.Logf("colours of 928 cells made and uploaded in %s us with %s", eval[string](board, `document.getElementById("experts").dataset.updateUs`),
		eval[string](board, `document.getElementById("experts").dataset.renderer`))

	chat.stop()
	chat.until(`document.querySelector(".stats")`)
	message := eval[string](chat, `document.querySelector(".msg-answer").id.slice(2)`)

	// The same answer, token by token, from what was stored.
	board.do(chromedp.Navigate(d.base + "/experts?turn=" + message))
	board.live()
	board.until(`document.querySelectorAll("#scrub-text span").length > 3`)
	board.do(chromedp.SendKeys(chromedp.CSS("#map-search"), "l12 e5"))
	board.press("Enter", "Enter", 13, 0)
	board.until(`/chosen for \d+ of \d+ token/.test(document.getElementById("scrub-chose").innerText)`)
	board.until(`document.getElementById("scrub-chose").innerText.startsWith("chosen for " + document.querySelectorAll("#scrub-text [data-chose]").length + " ")`)
	board.press("Escape", "Escape", 27, 0)
	board.do(chromedp.Focus(chromedp.CSS("#map-over")))
	board.press(".", "Period", 190, 0)
	board.press(".", "Period", 190, 0)
	board.until(`document.getElementById("scrub-where").innerText.startsWith("3/")`)
	board.until(`document.querySelectorAll(".legend-step").length > 1`)
	board.shoot("map-turn-dark")

	// Two conversations side by side, and where the weights are.
	chat.do(chromedp.Navigate(d.base + "/"))
	chat.live()
	chat.do(chromedp.SendKeys(chromedp.CSS("#draft"), "Write a Python function that adds numbers."))
	chat.press("Enter", "Enter", 13, 0)
	chat.until(running)
	chat.until(`document.querySelectorAll(".msg-answer p").length > 0`)
	chat.stop()
	chat.until(`document.querySelector(".stats")`)
	choose := func(id, value string) {
		t.Helper()
		eval[bool](board, fmt.Sprintf(`(() => { const s = document.getElementById(%q); s.value = %q; s.dispatchEvent(new Event("change", {bubbles: true})); return true })()`, id, value))
	}
	board.do(chromedp.Navigate(d.base + "/experts"))
	board.live()
	board.until(`document.querySelectorAll(".legend-step").length > 1`)
	choose("map-mode", "talks")
	choose("map-talk", "") // which two are chosen at first depends on what other tests left; TestOnlyConversationsWhoseAnswersEnded... says how
	board.until(`/Choose two conversations/.test(document.getElementById("map-legend").innerText)`)
	choose("map-talk", eval[string](board, `document.querySelectorAll("#map-talk option")[1].value`))
	choose("map-talk-other", eval[string](board, `document.querySelectorAll("#map-talk-other option")[2].value`))
	board.until(`/Share in .+ \(1 answer(, stopped early)?, \d+ tokens?\) over .+; one text each: no test/.test(document.getElementById("map-legend").innerText)`)
	board.shoot("map-talks-dark")

	// The address names the two: the map shows them again, and not the pair that it would choose.
	chosen := eval[string](board, `document.getElementById("map-talk").value + " " + document.getElementById("map-talk-other").value`)
	board.do(chromedp.Reload())
	board.live()
	board.until(`/Share in .+ over .+/.test(document.getElementById("map-legend").innerText)`)
	if again := eval[string](board, `document.getElementById("map-talk").value + " " + document.getElementById("map-talk-other").value`); again != chosen {
		t.Errorf("after a reload the map compares %s, chosen were %s", again, chosen)
	}
	board.do(chromedp.SendKeys(chromedp.CSS("#map-search"), "l12 e5"))
	board.press("Enter", "Enter", 13, 0)
	board.until(`document.querySelectorAll("#map-panel .recent rect").length >= 2 && /in memory/.test(document.getElementById("map-panel").innerText)`)
	choose("map-mode", "tier")
	board.until(`/928 of 928 experts in memory/.test(document.getElementById("map-legend").innerText)`)
	board.shoot("map-tier-dark")

	board.do(chromedp.EmulateViewport(360, 740))
	if wide := eval[int](board, "document.documentElement.scrollWidth"); wide > 360 {
		t.Errorf("the map page is %d pixels wide on a screen of 360", wide)
	}
	board.shoot("map-phone-dark")
	board.healthy()
	chat.healthy()
}

// batchPatience is how long a batch of a few dozen texts may take on a busy machine.
const batchPatience = 5 * time.Minute

func TestAProbeBatchRunsFromThePageToItsAtlas(t *testing.T) {
	d := modelDaemon(t)
	b := openBrowser(t)()
	b.do(chromedp.EmulateViewport(1280, 900))
	b.theme("light")
	b.do(chromedp.Navigate(d.Link()))
	b.live()
	b.do(chromedp.Navigate(d.base + "/jobs"))
	b.live()
	b.shoot("jobs-light")

	// A set that cannot be measured is refused with the reason, and the form keeps what was written.
	fill := func(text string) {
		b.t.Helper()
		eval[bool](b, fmt.Sprintf(`(() => { const f = document.getElementById("job-form"); f.text.value = %q; f.text.dispatchEvent(new Event("input", {bubbles: true})); f.draws.value = 200; return true })()`, text))
	}
	fill(`{"id":"a","topic":"x","text":""}`)
	b.click(`#job-form button[value="start"]`)
	b.until(`/line 1.*text.*empty/.test(document.querySelector(".problem")?.innerText)`)

	b.mu.Lock()
	b.faults = nil // the browser reports the refusal as an error of its own
	b.mu.Unlock()

	fill(smallSet(t))
	b.click(`#job-form button[value="check"]`)
	b.until(`/tokens: a text has/.test(document.querySelector("#new .notes")?.innerText)`)
	b.shoot("jobs-findings-light")
	fill(tellingSet(t))
	b.click(`#job-form button[value="start"]`)
	b.within(batchPatience, `document.querySelector('.job a[href^="/atlas/"]')`) // the row changes by itself
	b.shoot("jobs-done-light")
	b.click(`.job a[href^="/atlas/"]`)
	b.until(`location.pathname.startsWith("/atlas/") && document.querySelector(".facts")`)
	address := eval[string](b, "location.pathname")
	b.shoot("atlas-light")

	// Figures: what survives, topics by experts, layers; one is saved as a picture.
	b.until(`document.querySelectorAll(".ladder tbody tr").length >= 5`)
	b.until(`document.querySelectorAll("#figure-matrix rect[data-label]").length > 0`)
	b.until(`document.querySelectorAll("#figure-layers .profile-band").length > 20`)
	b.click(`[data-figure="figure-matrix"]`)
	b.until(`document.querySelector('[data-figure="figure-matrix"]').dataset.saved === "covey-topics-by-experts.png"`)

	// Does the strongest label matter? The batch completes this atlas.
	eval[bool](b, `(() => { const f = document.querySelector('form[action$="/ablate"]'); f.labels.value = 1; f.groups.checked = false; f.requestSubmit(); return true })()`)
	b.until(`location.pathname === "/jobs" && document.querySelectorAll(".job").length === 2`)
	b.live()
	b.within(batchPatience, `document.querySelectorAll('.job[data-state="done"]').length === 2`)
	b.do(chromedp.Navigate(d.base + address + "#removal"))
	b.until(`/matters|not shown/.test(document.querySelector("[aria-labelledby=removal] tbody")?.innerText)`)
	b.shoot("atlas-removal-light")
	b.do(chromedp.Navigate(d.base + "/atlas/compare?a=" + strings.TrimPrefix(address, "/atlas/") + "&b=" + strings.TrimPrefix(address, "/atlas/") + "&topic=chinese&topic_b=code"))
	b.until(`document.querySelectorAll("#figure-compare rect:not(.lift-even):not(.cell-unknown)").length > 10`)
	b.shoot("atlas-compare-light")
	b.do(chromedp.Navigate(d.base + address + "?all=1#table"))
	b.until(`/\[\d+\.\d+, \d+/.test(document.querySelector(".matrix td small")?.innerText)`)
	b.shoot("atlas-table-light")
	b.theme("dark")
	b.shoot("atlas-table-dark")

	// One expert's page: every estimate with its interval.
	b.click(".matrix tbody th a")
	b.until(`document.querySelectorAll("[aria-labelledby=forest] tbody tr").length === 3`)
	if rows := eval[int](b, `[...document.querySelectorAll("[aria-labelledby=forest] tbody tr")].filter(r => /\[.+, .+\]/.test(r.innerText)).length`); rows != 3 {
		t.Errorf("%d of 3 topics show an interval", rows)
	}
	b.until(`document.querySelectorAll(".example-text mark").length > 0`)
	b.shoot("atlas-expert-dark")
	b.do(chromedp.EmulateViewport(360, 740))
	for _, path := range []string{location(b), address, "/atlas", "/jobs", "/system"} {
		b.do(chromedp.Navigate(d.base + path))
		b.live()
		if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > 360 {
			t.Errorf("%s is %d pixels wide on a screen of 360", path, wide)
		}
		b.shoot("phone" + strings.NewReplacer("/", "-").Replace(strings.TrimSuffix(path, address)) + "-dark")
	}
	b.do(chromedp.EmulateViewport(1280, 900))
	b.theme("light")
	b.do(chromedp.Navigate(d.base + "/system"))
	b.live()
	b.shoot("system-light")

	// The map shows the atlas's topics.
	b.do(chromedp.Navigate(d.base + "/experts"))
	b.live()
	b.until(`document.querySelectorAll("#map-topic option").length === 3`)
	b.do(chromedp.SendKeys(chromedp.CSS("#map-search"), "poetry"))
	b.until(`/Lift in poetry/.test(document.getElementById("map-legend").innerText)`)
	b.shoot("map-topic-light")
	change := func(id, value string) {
		eval[bool](b, fmt.Sprintf(`(() => { const s = document.getElementById(%q); s.value = %q; s.dispatchEvent(new Event("change", {bubbles: true})); return true })()`, id, value))
	}
	change("map-sort", "topic")
	change("map-mode", "difference")
	b.until(`/Lift in poetry over (code|chinese)/.test(document.getElementById("map-legend").innerText)`)
	b.shoot("map-difference-light")

	// The address says what is shown, and shows it again.
	b.until(`/mode=difference/.test(location.search) && /topic=poetry/.test(location.search) && /sort=topic/.test(location.search)`)
	b.do(chromedp.Navigate(eval[string](b, "location.href")))
	b.live()
	b.until(`/Lift in poetry over (code|chinese)/.test(document.getElementById("map-legend").innerText) && document.getElementById("map-sort").value === "topic"`)

	// Which experts does a text use? The model reads it and answers nothing.
	eval[bool](b, `(() => { const s = document.getElementById("map-search"); s.value = "a lighthouse at night"; s.dispatchEvent(new Event("input", {bubbles: true})); return true })()`)
	b.click("#map-trace")
	b.until(`/Selections by the text/.test(document.getElementById("map-legend").innerText)`)
	b.shoot("map-text-light")
	b.healthy()
}

func location(b *tab) string { return eval[string](b, "location.pathname") }

func TestTheMapOfTiersIsSilentWhileTheConnectionIsLost(t *testing.T) {
	d := modelDaemon(t)
	board := openBrowser(t)()
	board.do(chromedp.Navigate(d.Link()))
	board.live()
	board.do(chromedp.Navigate(d.base + "/experts"))
	board.live()
	eval[bool](board, `(() => {
		const send = WebSocket.prototype.send;
		WebSocket.prototype.send = function (frame) { window.socket = this; return send.call(this, frame) };
		window.told = 0;
		new MutationObserver(list => list.forEach(m => window.told += m.addedNodes.length)).observe(document.getElementById("toasts"), {childList: true});
		const mode = document.getElementById("map-mode");
		mode.value = "tier";
		mode.dispatchEvent(new Event("change", {bubbles: true}));
		return true })()`)
	board.until(`/928 of 928 experts in memory/.test(document.getElementById("map-legend").innerText)`)
	// From now on no connection is made: the map goes on by itself and asks nobody.
	eval[bool](board, `(() => { window.WebSocket = function () { return {} }; window.socket.close(); window.lost = performance.now(); return true })()`)
	board.until(`performance.now() - window.lost > 3500`)
	if n := eval[int](board, `window.told`); n > 1 {
		t.Errorf("%d messages in 3.5 s without a connection", n)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"covey/daemon"
	"covey/daemon/settings"
)

type configCmd struct {
	daemon.Config `embed:""`
	JSON          bool `name:"json" help:"Print one JSON object."`
}

// Run prints every setting, its value and where that came from, in the form of a TOML file.
func (c *configCmd) Run(con *console, ctx *kong.Context, layers *settings.Layers) error {
	if err := c.Validate(); err != nil {
		return err
	}
	values := layers.Effective(ctx)
	if c.JSON {
		type entry struct {
			Value any    `json:"value"`
			From  string `json:"from"`
		}
		all := make(map[string]entry, len(values))
		for _, v := range values {
			all[v.Name] = entry{v.Value, v.From}
		}
		return con.json(all)
	}
	w := tabwriter.NewWriter(con.out, 0, 0, 2, ' ', 0)
	group := ""
	for _, v := range values {
		if v.Group != group {
			group = v.Group
			fmt.Fprintf(w, "# %s\n", group)
		}
		literal, err := json.Marshal(v.Value) // strings, numbers, booleans and lists are written alike in TOML
		if err != nil {
			return err
		}
		if string(literal) == "null" {
			literal = []byte("[]")
		}
		fmt.Fprintf(w, "%s = %s\t# %s\n", v.Name, literal, v.From)
	}
	return w.Flush()
}

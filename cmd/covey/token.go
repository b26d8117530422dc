package main

import (
	"fmt"

	"covey/daemon"
)

type tokenCmd struct {
	Data   string `help:"Data folder." default:"${data}" placeholder:"DIR"`
	Rotate bool   `help:"Make a new token: links, sessions and API keys of the old one stop working at once."`
}

// Run prints the token that API clients send as Authorization: Bearer or X-Api-Key.
func (c *tokenCmd) Run(con *console) error {
	if err := daemon.PrepareData(c.Data); err != nil {
		return err
	}
	read := daemon.ReadToken
	if c.Rotate {
		read = daemon.RotateToken
	}
	token, err := read(c.Data)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(con.out, token)
	return err
}

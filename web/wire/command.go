package wire

import "unicode/utf8"

// Name says what a command asks for. It is the first byte of a client frame.
type Name byte

// Commands. Each is followed by its arguments, all of them str; numbers are decimal text. Ids are the store's.
//
// 0x01-0x3f belong to the session and the chat, 0x40-0x5f to the expert map, 0x60-0x7f to atlases and jobs.
const (
	Hello Name = 0x01 // version, page token: must be the first frame
	Ping  Name = 0x02 // nothing; answered by Pong, not by Ack
	Crash Name = 0x03 // text of a client panic, for the daemon's log

	Watch      Name = 0x10 // conversation, running message ("" = none), then what the page has of it: tokens, blocks, bytes of answer, bytes of reasoning; "1" after a reconnect
	Send       Name = 0x11 // conversation ("" = a new one), text: ack carries conversation and message
	Stop       Name = 0x12 // message
	Regenerate Name = 0x13 // message: a sibling of this answer
	Edit       Name = 0x14 // message, text: a sibling of this user message, answered
	Remove     Name = 0x15 // message: it and what follows it
	Branch     Name = 0x16 // message: show this sibling and what follows it
	Continue   Name = 0x17 // message: go on with a stopped or cut answer
	Detail     Name = 0x18 // message, first token: answered by Detailed frames

	Rename   Name = 0x20 // conversation, title
	Pin      Name = 0x21 // conversation, "1" or "0"
	Delete   Name = 0x22 // conversation; ack carries it, so that Restore can be offered
	Restore  Name = 0x23 // conversation
	Search   Name = 0x24 // query; "" = the whole list; answered by a patch of the list
	Settings Name = 0x25 // conversation ("" = a new one, "*" = what new ones start with), then pairs of name and value; value "" = the model's default
	Measure  Name = 0x26 // conversation, draft text: ack carries its tokens, the context used and the limit

	Follow  Name = 0x40 // "1" or "0": send this connection Pulses from now on, or no longer
	Survey  Name = 0x41 // atlas ("" = the newest of this model, "-" = none): answered by a Map frame
	Inspect Name = 0x42 // MoE layer's model index, expert, atlas: answered by a patch of the map's panel
	Trace   Name = 0x43 // text: answered by a Traced frame; the model reads the text and answers nothing
	Count   Name = 0x44 // conversation: answered by a Tally frame
	Reside  Name = 0x45 // nothing: answered by a Tiers frame

	FollowJobs Name = 0x60 // nothing: patches of the jobs' rows from now on
)

// Command is what the client sends.
//
//	layout: name byte, seq uint, n uint, n x str
type Command struct {
	Name Name
	Seq  uint64 // chosen by the client, returned in Ack and Failure; 0 = no answer wanted
	Args []string
}

// Arg returns argument i, or "" when the command has fewer.
func (c Command) Arg(i int) string {
	if i < len(c.Args) {
		return c.Args[i]
	}
	return ""
}

// Append appends the encoded command to b.
func (c Command) Append(b []byte) []byte {
	b = append(b, byte(c.Name))
	b = appendUint(b, c.Seq)
	b = appendUint(b, uint64(len(c.Args)))
	for _, a := range c.Args {
		b = appendString(b, a)
	}
	return b
}

// DecodeCommand decodes one client frame. Strings are copies.
func DecodeCommand(b []byte) (Command, error) {
	if len(b) > MaxCommand {
		return Command{}, ErrLimit
	}
	r := reader{b: b}
	c := Command{Name: Name(r.byte()), Seq: r.uint()}
	n := r.count(1, maxArgs)
	for range n {
		arg := r.string()
		if !utf8.ValidString(arg) {
			r.fail(ErrText)
		}
		c.Args = append(c.Args, arg)
	}
	if c.Name == 0 || c.Name >= 0x80 {
		r.fail(ErrKind)
	}
	return c, r.end()
}

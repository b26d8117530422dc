package web

import (
	"strconv"
	"strings"
	"time"
)

// Chat is the chat page: a conversation, or the start of one (ID "").
type Chat struct {
	Page     Page
	ID       string // conversation; "" = a new one
	Name     string // title; "" = untitled
	Pinned   bool
	System   string
	Settings []Setting
	Messages []Message
	Used     int // tokens of the context that the conversation takes; 0 = not known
	Context  int // longest sequence in tokens; 0 = no model
	Starters []string
}

// Message is one message as it is shown.
type Message struct {
	ID        string
	User      bool   // written by the person; else an answer
	Text      string // as it was written or generated
	HTML      string // rendered closed blocks (answers only)
	Open      string // tail of a running answer that no block holds yet
	Reasoning string
	Thought   time.Duration // how long the reasoning took; 0 = not known
	State     MessageState
	Note      string // why it stopped or failed
	Time      time.Time
	Sibling   int // 1-based place among the alternatives
	Siblings  int
	Previous  string // ids of the neighbours; "" = none
	Next      string
	Stats     *Stats // nil = none
	Last      bool   // the last message of the branch

	// What a running answer's markup holds, so that the client can ask for the rest.
	Tokens, Blocks, Bytes, ReasoningBytes int
}

// MessageState is where a message stands.
type MessageState string

// States.
const (
	Complete MessageState = "complete"
	Running  MessageState = "running"
	Stopped  MessageState = "stopped"
	Failed   MessageState = "failed"
)

// Stats is the account under an answer. Measured by the engine; a zero that cannot be a measurement shows as a dash.
type Stats struct {
	Prompt, Cached, Generated int
	Queue, Prefill, Decode    time.Duration
	Bytes                     int64  // expert bytes read
	Finish                    string // stop, length, cancel, error, interrupted
	Seed                      string
	Model                     string
	Numerics                  string
	Detail                    bool // tokens and routing are kept: the token view works
}

// Setting is one sampling setting with its meaning.
type Setting struct {
	Name, Label, Help string
	Default           string // of the model
	Value             string // of this conversation; "" = the default
	Min, Max, Step    string
}

// Changed says whether the conversation departs from the model's default.
func (s Setting) Changed() bool { return s.Value != "" && s.Value != s.Default }

func changedCount(settings []Setting) int {
	n := 0
	for _, s := range settings {
		if s.Changed() {
			n++
		}
	}
	return n
}

// Item is a conversation in the side bar.
type Item struct {
	ID, Name string
	Pinned   bool
	Running  bool
	Current  bool
	Updated  time.Time
}

// Found is a search result in the side bar.
type Found struct {
	Conversation, Name string
	Message            string // "" = the title matched
	Snippet            []Piece
}

// Piece is a part of a snippet.
type Piece struct {
	Text  string
	Match bool
}

// Group is a heading of the conversation list with its items.
type Group struct {
	Name  string
	Items []Item
}

// Groups sorts items, which are in the order of the list (pinned first, then latest first), under date headings.
func Groups(items []Item, now time.Time) []Group {
	var groups []Group
	year, month, day := now.Date()
	today := time.Date(year, month, day, 0, 0, 0, 0, now.Location())
	for _, item := range items {
		name := "Older"
		switch at := item.Updated; {
		case item.Pinned:
			name = "Pinned"
		case !at.Before(today):
			name = "Today"
		case !at.Before(today.AddDate(0, 0, -1)):
			name = "Yesterday"
		case !at.Before(today.AddDate(0, 0, -7)):
			name = "Last 7 days"
		case !at.Before(today.AddDate(0, 0, -30)):
			name = "Last 30 days"
		}
		if len(groups) == 0 || groups[len(groups)-1].Name != name {
			groups = append(groups, Group{Name: name})
		}
		last := &groups[len(groups)-1]
		last.Items = append(last.Items, item)
	}
	return groups
}

// ItemName is the title that a person sees.
func ItemName(name string) string {
	if name == "" {
		return "New chat"
	}
	return name
}

// Rate formats tokens a second; a dash where there is nothing to divide.
func Rate(tokens int, d time.Duration) string {
	if tokens <= 0 || d <= 0 {
		return "-"
	}
	r := float64(tokens) / d.Seconds()
	if r >= 100 {
		return strconv.FormatFloat(r, 'f', 0, 64)
	}
	return strconv.FormatFloat(r, 'f', 1, 64)
}

// Seconds formats a duration in seconds, or milliseconds below one.
func Seconds(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	}
	return strconv.Itoa(int(d.Minutes())) + " min " + strconv.Itoa(int(d.Seconds())%60) + " s"
}

// Bytes formats a number of bytes with a decimal unit.
func Bytes(n int64) string {
	if n <= 0 {
		return "-"
	}
	units := []string{"B", "kB", "MB", "GB", "TB"}
	v, u := float64(n), 0
	for v >= 1000 && u < len(units)-1 {
		v /= 1000
		u++
	}
	if u == 0 || v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64) + " " + units[u]
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + units[u]
}

// Counted is a count with its noun in the right number: "1 label", "12 labels".
func Counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Count(n) + " " + noun + "s"
}

// Count formats a number with thin groups of three.
func Count(n int) string {
	s := strconv.Itoa(n)
	if len(s) <= 4 {
		return s
	}
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteString("\u202f")
		}
		b.WriteRune(c)
	}
	return b.String()
}

func finishText(finish string) string {
	switch finish {
	case "length":
		return "reached the length limit"
	case "cancel":
		return "stopped"
	case "interrupted":
		return "interrupted"
	case "error":
		return "failed"
	}
	return ""
}

// decodeTokens is how many tokens Decode measures: the first one ends the prefill.
func (s Stats) decodeTokens() int { return s.Generated - 1 }

func (s Stats) title() string {
	parts := []string{}
	add := func(label, value string) {
		if value != "" && value != "-" {
			parts = append(parts, label+" "+value)
		}
	}
	add("Model", s.Model)
	add("Numerics", s.Numerics)
	add("Seed", s.Seed)
	add("Queued", Seconds(s.Queue))
	add("Prompt read in", Seconds(s.Prefill))
	add("Generated in", Seconds(s.Decode))
	if s.Cached > 0 {
		add("From the prefix cache", strconv.Itoa(s.Cached)+" tokens")
	}
	return strings.Join(parts, "\n")
}

func itoa(n int) string { return strconv.Itoa(n) }

//go:build js && wasm

package main

import (
	"strconv"
	"strings"
	"syscall/js"

	"covey/web/client/answer"
	"covey/web/client/dom"
	"covey/web/wire"
)

// chat is the chat page: the answer that runs, the scroll position, and the commands of the messages' controls.
// Text that arrives is put into the document before the next paint, however many frames brought it.
type chat struct {
	app          *app
	conversation string // "" until the first message of a new one
	scroll       js.Value
	stick        bool // the view follows the end of the text

	running string // message that is being generated; "" = none
	text    *answer.Answer
	open    js.Value // element of the open text
	state   wire.State
	paint   *dom.Frames
	dirty   bool   // the open text has changed since the last paint
	thought string // reasoning text that is not in the document yet

	composer *composer
	inspect  *inspector
}

func (a *app) startChat() {
	root := dom.ID("chat")
	c := &chat{app: a, conversation: dom.Attr(root, "data-conversation"), scroll: dom.ID("scroll"), stick: true}
	a.chat = c
	c.paint = dom.NewFrames(c.draw)
	c.composer = newComposer(c)
	c.inspect = newInspector(c)
	a.frames[wire.KindTokens] = c.tokens
	a.frames[wire.KindState] = c.progress
	a.opened = append(a.opened, c.watch)
	dom.OnPassive(c.scroll, "scroll", func(js.Value) {
		c.stick = c.atEnd()
		dom.Hide(dom.ID("jump"), c.stick)
	})
	dom.On(dom.Window, "popstate", func(js.Value) { js.Global().Get("location").Call("reload") })
	c.actions()
	c.adopt()
	if js.Global().Get("location").Get("hash").String() == "" {
		c.toEnd()
	}
	c.sync()
}

func (c *chat) actions() {
	send := c.app.socket.Send
	message := func(el js.Value) string { return dom.Attr(el, "data-message") }
	c.app.actions["jump"] = func(_, _ js.Value) { c.stick = true; c.toEnd() }
	c.app.actions["stop"] = func(_, _ js.Value) { c.stop() }
	c.app.actions["regenerate"] = func(el, _ js.Value) { c.stick = true; send(c.app.orFail(nil), wire.Regenerate, message(el)) }
	c.app.actions["continue"] = func(el, _ js.Value) { c.stick = true; send(c.app.orFail(nil), wire.Continue, message(el)) }
	c.app.actions["branch"] = func(el, _ js.Value) { send(c.app.orFail(nil), wire.Branch, message(el)) }
	c.app.actions["restore"] = func(el, _ js.Value) {
		send(c.app.orFail(nil), wire.Restore, dom.Attr(el, "data-conversation"))
	}
	c.app.actions["edit"] = func(el, _ js.Value) { c.edit(message(el)) }
	c.app.actions["edit-cancel"] = func(el, _ js.Value) { c.closeEdit(dom.Closest(el, ".msg")) }
	c.app.actions["edit-save"] = func(el, _ js.Value) { c.saveEdit(dom.Closest(el, ".msg")) }
	c.app.actions["remove"] = func(el, _ js.Value) {
		text := "Delete this message and all that follows it? This cannot be undone."
		if js.Global().Call("confirm", text).Bool() {
			send(c.app.orFail(nil), wire.Remove, message(el))
		}
	}
	c.app.actions["copy"] = func(el, _ js.Value) { c.copyMessage(el, message(el)) }
	c.app.actions["wrap-code"] = func(el, _ js.Value) {
		on := dom.Closest(el, "figure").Get("classList").Call("toggle", "wrap").Bool()
		dom.SetAttr(el, "aria-pressed", strconv.FormatBool(on))
	}
	c.app.actions["starter"] = func(el, _ js.Value) { c.composer.set(dom.Text(el)); c.composer.send() }
	c.app.keys = append(c.app.keys, c.key)
}

// key handles the chat's keys.
func (c *chat) key(e js.Value) bool {
	if modal() {
		return false
	}
	target := e.Get("target")
	editing := dom.Closest(target, ".msg-editing")
	switch k := key(e); k {
	case "Escape":
		if dom.Is(editing) {
			c.closeEdit(editing)
			return true
		}
		if dom.Is(dom.Find(dom.Document, ":popover-open")) {
			return false // the browser closes it
		}
		if c.running != "" {
			c.stop()
			return true
		}
	case "Enter":
		if dom.Is(editing) && target.Get("tagName").String() == "TEXTAREA" {
			c.saveEdit(editing)
			return true
		}
		if target.Equal(c.composer.field) {
			c.composer.send()
			return true
		}
	case "ArrowUp":
		if target.Equal(c.composer.field) && c.composer.text() == "" {
			users := dom.All(dom.ID("log"), ".msg-user")
			if n := len(users); n > 0 && c.running == "" {
				c.edit(dom.Attr(users[n-1], "data-message"))
				return true
			}
		}
	case "/":
		if !typing(e) {
			c.composer.field.Call("focus")
			return true
		}
	case "Ctrl+Shift+D":
		c.app.deleteConversation(c.conversation)
		return true
	case "Ctrl+Shift+C":
		answers := dom.All(dom.ID("log"), ".msg-answer")
		if n := len(answers); n > 0 {
			c.copyMessage(js.Null(), dom.Attr(answers[n-1], "data-message"))
			return true
		}
	}
	return c.inspect.key(e)
}

// watch tells the daemon what this page shows and has.
func (c *chat) watch(again bool) {
	args := []string{c.conversation, c.running, "0", "0", "0", "0", "0"}
	if t := c.text; c.running != "" {
		for i, n := range []int{t.Tokens, t.Blocks, t.Bytes(), t.Reasoning()} {
			args[2+i] = strconv.Itoa(n)
		}
	}
	if again {
		args[6] = "1"
	}
	c.app.socket.Send(c.app.orFail(nil), wire.Watch, args...)
	c.composer.measure()
	c.sync()
}

// adopt finds the running answer in the document and takes over what it shows.
func (c *chat) adopt() {
	c.running, c.text, c.open, c.thought = "", nil, js.Null(), ""
	el := dom.Find(dom.ID("log"), `[data-state="running"]`)
	if !dom.Is(el) {
		return
	}
	number := func(name string) int { n, _ := strconv.Atoi(dom.Attr(el, name)); return n }
	c.running = dom.Attr(el, "data-message")
	c.open = dom.ID("o-" + c.running)
	c.text = answer.Resume(number("data-tokens"), number("data-blocks"), number("data-bytes"), number("data-reasoning"), dom.Text(c.open))
	c.state = wire.State{}
	c.dirty = true
	c.paint.Request()
	c.inspect.began(c.running)
}

// setConversation gives a new conversation its address.
func (c *chat) setConversation(id string) {
	if id == "" || id == c.conversation {
		return
	}
	c.conversation = id
	dom.SetAttr(dom.ID("chat"), "data-conversation", id)
	js.Global().Get("history").Call("pushState", js.Null(), "", "/c/"+id)
	dom.Hide(dom.ID("export-button"), false)
	c.composer.keep()
}

// tokens takes a Tokens frame.
func (c *chat) tokens(frame []byte) error {
	t, err := wire.DecodeTokens(frame)
	if err != nil {
		return err
	}
	if t.Message != c.running || c.text == nil {
		return nil // of an answer that this page no longer shows
	}
	_, thought, ok := c.text.Add(t)
	if !ok {
		c.watch(true) // something is missing: ask for the whole thread
		return nil
	}
	c.thought += thought
	c.dirty = true
	c.paint.Request()
	c.inspect.grew(t)
	return nil
}

// progress takes a State frame.
func (c *chat) progress(frame []byte) error {
	s, err := wire.DecodeState(frame)
	if err != nil {
		return err
	}
	if s.Message != c.running {
		return nil
	}
	c.state = s
	if s.Phase == wire.PhaseEnded {
		c.draw()
		c.ended()
		return nil
	}
	c.paint.Request()
	return nil
}

// ended gives the page its quiet state back; patches with the statistics follow.
func (c *chat) ended() {
	message := c.running
	if el := dom.ID("m-" + message); dom.Is(el) {
		dom.SetAttr(el, "data-state", "complete")
	}
	c.running, c.text = "", nil
	c.inspect.ended(message)
	c.composer.measure()
	c.sync()
}

// patch takes Block and Fold.
func (c *chat) patch(p wire.Patch) {
	if p.Target != c.running || c.text == nil {
		return
	}
	switch p.Op {
	case wire.Block:
		fresh, ok := c.text.Close(p.Arg)
		if !ok {
			c.watch(true)
		}
		if !fresh {
			return
		}
		blocks := dom.ID("b-" + c.running)
		blocks.Call("insertAdjacentHTML", "beforeend", p.HTML)
		if last := blocks.Get("lastElementChild"); dom.Is(last) {
			announce(dom.Text(last))
		}
		c.dirty = true
		c.draw() // in the same task: the text must not be seen twice or not at all
	case wire.Fold:
		if details := dom.ID("r-" + c.running); dom.Is(details) {
			details.Set("open", false)
			dom.SetText(dom.Find(details, "[data-summary]"), "Reasoning, "+seconds(p.Arg))
		}
	}
}

func seconds(ms int) string {
	return strconv.FormatFloat(float64(ms)/1000, 'f', 1, 64) + " s"
}

// patched is called after a patch has changed an element.
func (c *chat) patched(target string) {
	switch {
	case target == "log":
		c.adopt()
		dom.Hide(dom.ID("welcome"), dom.ID("log").Get("childElementCount").Int() > 0)
		c.inspect.restore()
		c.sync()
	case target == "gone":
		c.sync()
	case target == "meter":
		c.composer.measure()
	case strings.HasPrefix(target, "f-"), strings.HasPrefix(target, "b-"):
		c.inspect.restore()
	default:
		return
	}
	c.follow()
}

// draw puts what has arrived into the document. Once a paint.
func (c *chat) draw() {
	if c.text != nil && c.dirty {
		c.dirty = false
		if language, code, ok := answer.Fence(c.text.Open()); ok {
			c.open.Set("className", "open-text open-code")
			if language == "" {
				language = "text"
			}
			dom.SetAttr(c.open, "data-language", language)
			dom.SetText(c.open, code)
		} else {
			c.open.Set("className", "open-text")
			dom.SetText(c.open, strings.Trim(c.text.Open(), "\n"))
		}
	}
	if c.thought != "" {
		box := dom.ID("rt-" + c.running)
		box.Call("append", c.thought)
		c.thought = ""
		dom.Hide(dom.ID("r-"+c.running), false)
	}
	if c.running != "" {
		if p := dom.ID("p-" + c.running); dom.Is(p) {
			dom.SetText(p, c.progressText())
		}
	}
	c.follow()
}

// progressText says what the running answer is doing.
func (c *chat) progressText() string {
	s := c.state
	switch {
	case s.Phase == wire.PhaseQueued && s.Message == "":
		return "Waiting \u2026"
	case s.Phase == wire.PhaseQueued && s.Done == 0:
		return "Next in the queue"
	case s.Phase == wire.PhaseQueued:
		return strconv.Itoa(s.Done) + " before this one in the queue"
	case s.Phase == wire.PhasePrefill && s.Total > 0:
		return "Reading the prompt: " + strconv.Itoa(s.Done) + " of " + strconv.Itoa(s.Total) + " tokens"
	case s.Phase == wire.PhasePrefill:
		return "Reading the prompt"
	case s.Done == 1:
		return "1 token"
	case s.Rate > 0:
		return strconv.Itoa(s.Done) + " tokens at " + strconv.FormatFloat(float64(s.Rate), 'f', 1, 32) + " tok/s"
	}
	return strconv.Itoa(s.Done) + " tokens"
}

// sync shows Send or Stop, whichever can be pressed.
func (c *chat) sync() {
	busy := c.running != ""
	dom.Hide(dom.ID("send"), busy)
	dom.Hide(dom.ID("stop"), !busy)
	c.composer.sync()
	log := dom.ID("log")
	log.Call("setAttribute", "aria-busy", strconv.FormatBool(busy))
}

func (c *chat) stop() {
	if c.running != "" {
		c.app.socket.Send(c.app.orFail(nil), wire.Stop, c.running)
	}
}

func (c *chat) atEnd() bool {
	s := c.scroll
	return s.Get("scrollHeight").Float()-s.Get("scrollTop").Float()-s.Get("clientHeight").Float() < 48
}

// follow keeps the end in view if the person was there.
func (c *chat) follow() {
	if c.stick {
		c.toEnd()
	} else {
		dom.Hide(dom.ID("jump"), c.atEnd())
	}
}

func (c *chat) toEnd() {
	c.scroll.Set("scrollTop", c.scroll.Get("scrollHeight"))
	dom.Hide(dom.ID("jump"), true)
}

// edit turns a message of the person's into a field.
func (c *chat) edit(message string) {
	msg := dom.ID("m-" + message)
	if !dom.Is(msg) || msg.Get("classList").Call("contains", "msg-editing").Bool() {
		return
	}
	bubble := dom.Find(msg, "[data-text]")
	text := dom.Text(bubble)
	msg.Get("classList").Call("add", "msg-editing")
	box := dom.New("div", "edit-box", "")
	field := dom.New("textarea", "", "")
	dom.SetAttr(field, "aria-label", "Edit the message")
	field.Set("value", text)
	bar := dom.New("div", "edit-bar", "")
	bar.Call("append", button("quiet small", "Cancel", "edit-cancel"), button("primary small", "Send", "edit-save"))
	box.Call("append", field, bar)
	bubble.Call("after", box)
	dom.Style(field, "height", pixels(min(field.Get("scrollHeight").Float()+2, 320)))
	field.Call("focus")
	field.Call("setSelectionRange", len(text)*2, len(text)*2) // beyond the end means the end
}

func button(class, label, action string) js.Value {
	b := dom.New("button", class, label)
	b.Set("type", "button")
	dom.SetAttr(b, "data-action", action)
	return b
}

func (c *chat) closeEdit(msg js.Value) {
	if !dom.Is(msg) {
		return
	}
	msg.Get("classList").Call("remove", "msg-editing")
	if box := dom.Find(msg, ".edit-box"); dom.Is(box) {
		box.Call("remove")
	}
	dom.Focus(dom.Find(msg, `[data-action="edit"]`))
}

func (c *chat) saveEdit(msg js.Value) {
	field := dom.Find(msg, ".edit-box textarea")
	if !dom.Is(field) {
		return
	}
	c.stick = true
	c.app.socket.Send(c.app.orFail(func(wire.Ack) { c.composer.field.Call("focus") }), wire.Edit, dom.Attr(msg, "data-message"), field.Get("value").String())
}

// copyMessage copies what a message says, without its reasoning.
func (c *chat) copyMessage(control js.Value, message string) {
	msg := dom.ID("m-" + message)
	if !dom.Is(msg) {
		return
	}
	if text := dom.Find(msg, "[data-text]"); dom.Is(text) {
		copyText(dom.Text(text), control)
		return
	}
	// The source of an answer, Markdown and all, is the daemon's: it stands in the message's template element.
	if source := dom.ID("src-" + message); dom.Is(source) {
		copyText(dom.Text(source.Get("content")), control)
		return
	}
	copyText(strings.TrimSpace(dom.ID("b-"+message).Get("innerText").String()+dom.Text(dom.ID("o-"+message))), control)
}

// copyText puts text on the clipboard and says so at the control.
func copyText(text string, control js.Value) {
	clipboard := js.Global().Get("navigator").Get("clipboard")
	if !clipboard.Truthy() {
		return
	}
	done := dom.Func(func([]js.Value) {
		announce("Copied")
		if !dom.Is(control) {
			return
		}
		control.Get("classList").Call("add", "done")
		dom.After(1200, func() { control.Get("classList").Call("remove", "done") })
	})
	clipboard.Call("writeText", text).Call("then", done)
}

// announce tells a screen reader one piece of text; the streaming text itself is silent.
func announce(text string) {
	const most = 400
	text = strings.TrimSpace(text)
	if len(text) > most {
		text = text[:most]
	}
	box := dom.ID("announcer")
	if box.Get("childElementCount").Int() > 8 {
		box.Get("firstElementChild").Call("remove")
	}
	box.Call("append", dom.New("p", "", text))
}

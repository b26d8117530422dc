package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"covey/store"
	"covey/web"
)

// importLimit is the largest file of conversations that is taken.
const importLimit = 64 << 20

// starters are offered where a conversation is still empty.
var starters = []string{
	"Explain how a bicycle stays upright.",
	"Write a short poem about the sea in autumn.",
	"Give me a Python function that finds prime numbers.",
	"What should I see on a day in Rome?",
}

// servePage serves / (a new conversation) and /c/ID. ?m= shows the branch through that message.
func (c *chats) servePage(w http.ResponseWriter, r *http.Request) {
	s := c.server
	conversations, err := s.store.Conversations(r.Context(), 0, listLimit)
	if err != nil {
		c.refuseStored(w, r, err, "the conversations")
		return
	}
	id := r.PathValue("id")
	chat := web.Chat{}
	if id == "" {
		defaults, err := s.chatDefaults(r.Context())
		if err != nil {
			refuse(w, r, http.StatusInternalServerError, AsError(err))
			return
		}
		raw, err := json.Marshal(defaults.Settings)
		if err != nil {
			refuse(w, r, http.StatusInternalServerError, problem(KindInternal, "internal", "", err, "encoding the settings"))
			return
		}
		chat, _, _ = c.thread(store.Conversation{System: defaults.System, Settings: raw}, nil)
	} else {
		if m := r.URL.Query().Get("m"); m != "" {
			if found, err := s.store.Message(r.Context(), m); err == nil && found.Conversation == id {
				if _, err := s.store.SelectBranch(r.Context(), m); err != nil && !errors.Is(err, store.ErrReadOnly) {
					c.refuseStored(w, r, err, "the message")
					return
				}
			}
		}
		conv, messages, err := s.store.Thread(r.Context(), id)
		if err == nil {
			err = present(conv)
		}
		if err != nil {
			c.refuseStored(w, r, err, "this conversation")
			return
		}
		chat, _, _ = c.thread(conv, messages)
	}
	chat.Starters = starters
	chat.Page = s.newPage(r, "chat", chat.Name)
	s.render(w, r, http.StatusOK, web.ChatPage(chat, items(conversations, id), time.Now()))
}

func (c *chats) refuseStored(w http.ResponseWriter, r *http.Request, err error, what string) {
	status := http.StatusInternalServerError
	if errors.Is(err, store.ErrNotFound) {
		status = http.StatusNotFound
	}
	refuse(w, r, status, AsError(stored(err, what)))
}

// serveTokens is the token view as a page of its own: a table for readers without the client.
func (c *chats) serveTokens(w http.ResponseWriter, r *http.Request) {
	m, err := c.server.store.Message(r.Context(), r.PathValue("message"))
	if err == nil && m.Conversation != r.PathValue("id") {
		err = store.ErrNotFound
	}
	if err != nil {
		c.refuseStored(w, r, err, "this message")
		return
	}
	shape, tokens, err := c.tokens(r.Context(), m.ID)
	if err != nil {
		refuse(w, r, http.StatusNotFound, AsError(err))
		return
	}
	rows := make([]web.TokenRow, len(tokens))
	for i, g := range tokens {
		rows[i] = web.TokenRow{Text: g.Text, Logprob: g.Logprob}
		for _, a := range g.alternatives {
			rows[i].Alternatives = append(rows[i].Alternatives, web.TokenAlternative{Text: a.Text, Logprob: a.Logprob})
		}
		for j, layer := range shape.Layers {
			if k := shape.TopK; len(g.ids) == shape.Slots() && len(g.weights) == shape.Slots() {
				rows[i].Layers = append(rows[i].Layers, web.TokenLayer{Layer: layer, IDs: g.ids[j*k : (j+1)*k], Weights: g.weights[j*k : (j+1)*k]})
			}
		}
	}
	c.server.render(w, r, http.StatusOK, web.TokensPage(c.server.newPage(r, "chat", "Tokens"), m.Conversation, m.ID, rows))
}

func (c *chats) serveMarkdown(w http.ResponseWriter, r *http.Request) {
	conv, err := c.server.store.Conversation(r.Context(), r.PathValue("id"))
	if err != nil {
		c.refuseStored(w, r, err, "this conversation")
		return
	}
	var b bytes.Buffer
	if err := c.server.store.ExportMarkdown(r.Context(), &b, conv.ID); err != nil {
		c.refuseStored(w, r, err, "this conversation")
		return
	}
	attach(w, "text/markdown; charset=utf-8", fileName(conv.Title)+".md")
	b.WriteTo(w)
}

// serveJSON exports one conversation, or (without an id) all of them.
func (c *chats) serveJSON(w http.ResponseWriter, r *http.Request) {
	var ids []string
	name := "covey-conversations"
	if id := r.PathValue("id"); id != "" {
		conv, err := c.server.store.Conversation(r.Context(), id)
		if err != nil {
			c.refuseStored(w, r, err, "this conversation")
			return
		}
		ids, name = []string{id}, fileName(conv.Title)
	}
	var b bytes.Buffer
	if err := c.server.store.ExportJSON(r.Context(), &b, ids...); err != nil {
		c.refuseStored(w, r, err, "the conversations")
		return
	}
	attach(w, "application/json; charset=utf-8", name+".json")
	b.WriteTo(w)
}

func attach(w http.ResponseWriter, mime, name string) {
	w.Header().Set("Content-Type", mime)
	w.Header().Set("Content-Disposition", "attachment; filename*=UTF-8''"+url.PathEscape(name))
}

// fileName makes a title fit to name a file.
func fileName(title string) string {
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune(`/\:*?"<>|`, r) || r < ' ' {
			return '-'
		}
		return r
	}, title)
	name = strings.Trim(name, " .-\u2026")
	if name == "" {
		return "conversation"
	}
	return name
}

// serveImport takes a file that /export or /c/ID/export.json wrote.
func (c *chats) serveImport(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		refuseJSON(w, http.StatusRequestEntityTooLarge, problem(KindInput, "too_large", "export fewer conversations at once", err, "the file could not be read whole"), "")
		return
	}
	ids, err := c.server.store.ImportJSON(r.Context(), bytes.NewReader(raw))
	if err != nil {
		status := http.StatusInternalServerError
		if errors.Is(err, store.ErrInvalid) {
			status = http.StatusBadRequest
		}
		refuseJSON(w, status, AsError(stored(err, "the file")), "")
		return
	}
	c.refreshLists(r.Context())
	writeJSON(w, http.StatusOK, map[string]any{"imported": len(ids), "conversations": ids})
}

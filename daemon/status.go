package daemon

import (
	"encoding/json"
	"html/template"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"covey/web"
)

// errorBody is the JSON of every refusal: OpenAI's four fields, Anthropic's outer type, and our hint, so that one shape
// serves all clients.
type errorBody struct {
	Type  string `json:"type"` // "error"
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
		Hint    string  `json:"hint,omitempty"`
	} `json:"error"`
}

// refuse answers with an error: a page for browsers that ask for one, JSON for everybody else.
func refuse(w http.ResponseWriter, r *http.Request, status int, e *Error) {
	if wantsHTML(r) {
		writeStatusPage(w, r, status, statusPage{Title: statusTitle(status), Message: sentence(e.Message), Detail: detail(e), Hint: sentence(e.Hint)})
		return
	}
	refuseJSON(w, status, e, "")
}

// refuseJSON answers in OpenAI's shape; param names the offending field, if there is one.
func refuseJSON(w http.ResponseWriter, status int, e *Error, param string) {
	writeJSON(w, status, newErrorBody(status, e, param))
}

func newErrorBody(status int, e *Error, param string) errorBody {
	body := errorBody{Type: "error"}
	body.Error.Message = e.Error()
	if param != "" {
		body.Error.Param = &param
	}
	body.Error.Code = e.Code
	body.Error.Hint = e.Hint
	body.Error.Type = errorType(status)
	return body
}

// errorType is OpenAI's class of an HTTP status.
func errorType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusForbidden:
		return "permission_error"
	case status == http.StatusNotFound:
		return "not_found_error"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status == http.StatusServiceUnavailable:
		return "service_unavailable"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// writeJSON answers with JSON. Its client has writeWhole from now, however long the answer took to make.
func writeJSON(w http.ResponseWriter, status int, v any) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWhole))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	encodeJSON(w, v) // the client is gone if this fails
}

// encodeJSON writes v and a line break, with <, > and & as they are: nothing here is embedded in HTML.
func encodeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// refuseWithoutModel answers for a route that needs a model: 503 with the progress while it loads, or the reason why
// it did not.
func (s *Server) refuseWithoutModel(w http.ResponseWriter, r *http.Request, e *Error) {
	loading := e.Code == "loading"
	if loading {
		w.Header().Set("Retry-After", "1")
	}
	if !wantsHTML(r) {
		refuseJSON(w, http.StatusServiceUnavailable, e, "")
		return
	}
	page := statusPage{Title: "Covey is loading its model", Message: sentence(e.Message), Loading: loading}
	if loading {
		w.Header().Set("Refresh", "1")
		s.model.mu.Lock()
		page.Done, page.Total = s.model.done, max(1, s.model.total)
		s.model.mu.Unlock()
	} else {
		page.Title, page.Detail, page.Hint = "Covey has no model", detail(e), sentence(e.Hint)
	}
	writeStatusPage(w, r, http.StatusServiceUnavailable, page)
}

// wantsHTML says whether a person will read the answer.
func wantsHTML(r *http.Request) bool {
	return !strings.HasPrefix(r.URL.Path, "/v1/") && strings.Contains(r.Header.Get("Accept"), "text/html")
}

type statusPage struct {
	Title, Message, Detail, Hint string
	Style                        string // address of the stylesheet; "" = the visitor may not load it
	Loading                      bool
	Done, Total                  int64
}

// statusTemplate is a page that needs no script and reads well without its stylesheet: it must work when nothing else
// does, and for visitors who may not load anything else.
var statusTemplate = template.Must(template.New("status").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{.Title}}</title>
{{- if .Style}}
<link rel="stylesheet" href="{{.Style}}">
{{- end}}
</head>
<body>
<main class="document">
<h1>{{.Title}}</h1>
<p role="status">{{.Message}}</p>
{{- if .Loading}}
<p><progress max="{{.Total}}" value="{{.Done}}" aria-label="bytes loaded"></progress></p>
<p>This page turns into the one you asked for by itself.</p>
{{- end}}
{{- if .Detail}}
<pre>{{.Detail}}</pre>
{{- end}}
{{- if .Hint}}
<p>{{.Hint}}</p>
{{- end}}
{{- if and .Style (not .Loading)}}
<p><a href="/">Open Covey</a></p>
{{- end}}
</main>
</body>
</html>
`))

func writeStatusPage(w http.ResponseWriter, r *http.Request, status int, page statusPage) {
	if identify(r.Context()).Session != "" {
		page.Style = web.Assets().URL("app.css")
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	statusTemplate.Execute(w, page) // the client is gone if this fails
}

func statusTitle(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "Covey needs its link"
	case http.StatusForbidden:
		return "Not allowed"
	case http.StatusNotFound:
		return "Nothing here"
	case http.StatusTooManyRequests:
		return "Too many requests"
	}
	return http.StatusText(status)
}

func detail(e *Error) string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// sentence gives an error's message the capital and the full stop that a page wants.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	first, size := utf8.DecodeRuneInString(s)
	s = string(unicode.ToUpper(first)) + s[size:]
	if last := s[len(s)-1]; last != '.' && last != '%' && last != '?' && last != '!' {
		s += "."
	}
	return s
}

package daemon

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"
)

// mount adds every route and socket command. Each part of the app has one line here and its handlers in its own files.
func (s *Server) mount() {
	s.open("GET /healthz", s.serveHealth)
	s.open("GET /readyz", s.serveReady)
	s.always("GET /metrics", s.serveMetrics)
	s.always("GET /ws", s.serveSocket)
	s.mountOpenAI()
	s.mountAnthropic()
	s.mountPages()
	s.mountChat()
	a := &atlases{server: s}
	s.mountMap(a)
	s.mountAtlas(a)
	s.mountJobs(a)
	s.mountSystem()
}

// A route's kind says what must be true before its handler runs. All kinds have passed Host, Origin and, but for open
// ones, the authenticator; unsafe methods of browsers have shown their page token (auth.go).

// page adds a route that needs the model: until it is loaded, a page or JSON with the progress is served instead.
func (s *Server) page(pattern string, h http.HandlerFunc) {
	s.route(pattern, s.needModel(h), defaultBody)
}

// pageWithBody is page with another limit on the request's body, in bytes.
func (s *Server) pageWithBody(pattern string, limit int64, h http.HandlerFunc) {
	s.route(pattern, s.needModel(h), limit)
}

// always adds a route that works without a model too: static files, readiness, metrics, settings.
func (s *Server) always(pattern string, h http.HandlerFunc) { s.route(pattern, h, defaultBody) }

// open adds a route that needs no credentials. guard knows the paths: see openPaths.
func (s *Server) open(pattern string, h http.HandlerFunc) { s.route(pattern, h, defaultBody) }

// openPaths need Host and Origin to be right, and nothing else: supervisors ask them and hold no token.
var openPaths = map[string]bool{"/healthz": true, "/readyz": true}

const (
	defaultBody = 1 << 20          // bytes of a request's body
	readBody    = 60 * time.Second // a body must have arrived by then
	writeWhole  = 5 * time.Minute  // an answer must have been taken by then, unless its handler says otherwise
)

func (s *Server) route(pattern string, h http.HandlerFunc, limit int64) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.ContentLength != 0 {
			r.Body = http.MaxBytesReader(w, r.Body, limit)
		}
		h(w, r)
	})
}

// timedBody is a body with a read deadline that is lifted at its end: left in place it would cut a long answer, because
// the server watches the connection for the client's hanging up while the handler runs. After a failed read it stays: the
// server waits for the rest of a body before it sends the refusal.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// needModel answers for h while there is no model.
func (s *Server) needModel(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := s.Engine(); err != nil {
			s.refuseWithoutModel(w, r, AsError(err))
			return
		}
		h(w, r)
	}
}

// guard is the outermost handler: security headers, measurement, the authenticator, and a wall against panics.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		secureHeaders(w.Header(), s.auth.secure)
		// Set anew for each request, since a stream leaves its own on a connection that goes on to serve others.
		control := http.NewResponseController(w)
		control.SetWriteDeadline(start.Add(writeWhole))
		if r.Body != nil && r.ContentLength != 0 { // before the authenticator, which reads forms
			control.SetReadDeadline(start.Add(readBody))
			r.Body = &timedBody{ReadCloser: r.Body, control: control}
		}
		rec := &recorder{ResponseWriter: w}
		s.metrics.inFlight.Inc()
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler {
					s.metrics.inFlight.Dec()
					panic(v)
				}
				s.log.Error("panic in a handler", slog.String("path", r.URL.Path), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
				if rec.status == 0 {
					refuse(rec, r, http.StatusInternalServerError, problem(KindInternal, "internal", "the log has the details", nil, "something went wrong inside Covey"))
				}
			}
			s.metrics.inFlight.Dec()
			s.measure(r, rec, time.Since(start))
		}()
		if isLink, ref := s.auth.exchange(rec, r); isLink {
			if ref != nil {
				s.refuseUnauthorised(rec, r, ref)
			}
			return
		}
		decide := s.auth.authenticate
		if openPaths[r.URL.Path] {
			decide = s.auth.authenticateOpen
		}
		id, ref := decide(r)
		if ref != nil {
			s.refuseUnauthorised(rec, r, ref)
			return
		}
		r = r.WithContext(withIdentity(r.Context(), id))
		next.ServeHTTP(rec, r)
		rec.pattern = r.Pattern // set by the mux on this copy of the request
	})
}

// routes is the mux with refusals of our own form where no route matches.
func (s *Server) routes() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := s.mux.Handler(r)
		if pattern != "" {
			s.mux.ServeHTTP(w, r)
			return
		}
		var miss missed
		h.ServeHTTP(&miss, r) // the mux's own answer: 404, or 405 with Allow
		if allow := miss.header.Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
			refuse(w, r, http.StatusMethodNotAllowed, problem(KindUsage, "method_not_allowed", "use "+allow, nil, "%s does not take %s", clip(r.URL.Path, 100), clip(r.Method, 20)))
			return
		}
		refuse(w, r, http.StatusNotFound, problem(KindUsage, "not_found", "", nil, "there is nothing at %s", clip(r.URL.Path, 100)))
	})
}

// missed swallows the mux's answer to a request that no route matches, but for its header.
type missed struct{ header http.Header }

func (m *missed) Header() http.Header {
	if m.header == nil {
		m.header = http.Header{}
	}
	return m.header
}
func (m *missed) WriteHeader(int)             {}
func (m *missed) Write(b []byte) (int, error) { return len(b), nil }

func (s *Server) refuseUnauthorised(w http.ResponseWriter, r *http.Request, ref *refusal) {
	if ref.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="covey"`)
	}
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // else the server waits for the body before it answers
	}
	if ref.retryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(int(ref.retryAfter.Seconds())))
	}
	refuse(w, r, ref.status, ref.err)
}

func (s *Server) measure(r *http.Request, rec *recorder, took time.Duration) {
	route := rec.pattern
	if route == "" {
		route = "other"
	}
	s.metrics.requests.WithLabelValues(route, fmt.Sprint(rec.code())).Inc()
	s.metrics.requestSeconds.WithLabelValues(route).Observe(took.Seconds())
	s.log.Debug("request", slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", rec.code()), slog.Duration("dur", took))
}

// recorder remembers the status of a response. Unwrap lets http.ResponseController reach the connection.
type recorder struct {
	http.ResponseWriter
	status  int
	pattern string
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Hijack is for the WebSocket library, which looks for it on the writer itself.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.status = http.StatusSwitchingProtocols
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}

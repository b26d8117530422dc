package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"covey/engine/canon"
)

// testDaemon is a running daemon whose model folder holds no model.
type testDaemon struct {
	*Server
	t     *testing.T
	base  string // http://127.0.0.1:PORT
	token string
	stop  func() error // cancels Run and returns its error
}

func startDaemon(t *testing.T, change func(*Config)) *testDaemon {
	t.Helper()
	c := goodConfig()
	c.Data = filepath.Join(t.TempDir(), "data")
	c.Model = t.TempDir()
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := New(ctx, c, "test", quiet)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var result error
	stopped := false
	stop := func() error {
		if !stopped {
			cancel()
			result, stopped = <-ended, true
		}
		return result
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	token, _ := s.auth.token.current()
	return &testDaemon{Server: s, t: t, base: "http://" + s.Addr().String(), token: token, stop: stop}
}

// loaded waits until the model has been loaded or has failed to.
func (d *testDaemon) loaded() *Error {
	d.t.Helper()
	for range 2000 {
		_, err := d.Engine()
		if err == nil {
			return nil
		}
		if e := AsError(err); e.Code != "loading" {
			return e
		}
		time.Sleep(5 * time.Millisecond)
	}
	d.t.Fatal("the model is still loading")
	return nil
}

// get sends a request with the token and returns status, header and body.
func (d *testDaemon) get(path string, headers ...string) (int, http.Header, string) {
	d.t.Helper()
	return d.do("GET", path, "", append([]string{"Authorization", "Bearer " + d.token}, headers...)...)
}

func (d *testDaemon) do(method, path, body string, headers ...string) (int, http.Header, string) {
	d.t.Helper()
	r, err := http.NewRequest(method, d.base+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(raw)
}

func TestADaemonWithoutAModelSaysThatNoneWasNamed(t *testing.T) {
	d := startDaemon(t, func(c *Config) { c.Model = "" })
	if failure := d.loaded(); failure == nil || failure.Code != "load_failed" || !strings.Contains(failure.Error(), "no model folder was named") {
		t.Errorf("got %v", failure)
	}
}

func TestNoFormOfRequestGoesAroundTheGuard(t *testing.T) {
	d := startDaemon(t, nil)
	host := d.Addr().String()
	for request, want := range map[string]string{
		"OPTIONS * HTTP/1.1\r\nHost: " + host:                         "401",
		"OPTIONS * HTTP/1.1\r\nHost: evil.example":                    "403",
		"GET http://evil.example/metrics HTTP/1.1\r\nHost: " + host:   "403",
		"GET //metrics HTTP/1.1\r\nHost: " + host:                     "401",
		"GET /healthz/../metrics HTTP/1.1\r\nHost: " + host:           "401",
		"GET /%68ealthz/..%2fmetrics HTTP/1.1\r\nHost: " + host:       "401",
		"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443": "403",
	} {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%s\r\nConnection: close\r\n\r\n", request)
		status, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(status, " "+want+" ") {
			t.Errorf("%q: %q, error %v, want %s", request, status, err, want)
		}
		conn.Close()
	}
}

// brokenDevice takes no program.
type brokenDevice struct{}

func (brokenDevice) Name() string { return "broken" }
func (brokenDevice) Load(*canon.Program) (canon.Runner, error) {
	return nil, errors.New("out of device memory")
}

func TestAModelThatADeviceDoesNotTakeIsSaidToRunWithoutIt(t *testing.T) {
	d := startDaemon(t, func(c *Config) {
		c.Model, c.Context = bundledModel, 512
		c.Backend = func(string) (canon.Backend, error) { return brokenDevice{}, nil }
	})
	failure := d.loaded()
	if failure == nil || !strings.Contains(failure.Error(), "out of device memory") || !strings.HasPrefix(failure.Hint, "--device cpu runs without the device; ") {
		t.Fatalf("got %v with hint %q", failure, failure.Hint)
	}
}

func TestAModelThatFailsToLoadLeavesTheDaemonUpWithTheReason(t *testing.T) {
	d := startDaemon(t, nil)
	failure := d.loaded()
	if failure == nil || failure.Code != "load_failed" || failure.Hint == "" {
		t.Fatalf("got %v, want load_failed with a hint", failure)
	}
	code, _, body := d.get("/readyz")
	var ready readinessDetail
	if err := json.Unmarshal([]byte(body), &ready); err != nil {
		t.Fatal(err)
	}
	if code != 503 || ready.Ready || ready.Status != "failed" || ready.Error != failure.Error() || ready.Hint == "" {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, _, body := d.do("GET", "/readyz", ""); code != 503 || body != "{\"ready\":false,\"status\":\"failed\",\"progress\":0}\n" {
		t.Errorf("readyz without the token: %d %s", code, body)
	}
	code, _, body = d.get("/v1/models")
	if code != 503 || !strings.Contains(body, `"code":"load_failed"`) {
		t.Errorf("models: %d %s", code, body)
	}
	if code, _, body := d.get("/healthz"); code != 200 || body != "{\"status\":\"ok\"}\n" {
		t.Errorf("healthz: %d %s", code, body)
	}
	if code, _, body := d.get("/metrics"); code != 200 || !strings.Contains(body, "covey_ready 0") || !strings.Contains(body, "covey_http_requests_total") {
		t.Errorf("metrics: %d %.200s", code, body)
	}
}

// What fails may know its own remedy: a device, for one, is not mended by another model.
func TestAFailureToLoadKeepsItsOwnHint(t *testing.T) {
	d := startDaemon(t, func(c *Config) {
		c.Backend = func(string) (canon.Backend, error) {
			return nil, &Error{Kind: KindEnvironment, Code: "device", Message: "opening device cuda", Hint: "covey doctor lists the devices", Err: errors.New("cuDeviceGetCount: failed")}
		}
	})
	failure := d.loaded()
	if failure == nil || failure.Hint != "covey doctor lists the devices" || !strings.Contains(failure.Error(), "cuDeviceGetCount") {
		t.Errorf("got %+v", failure)
	}
}

func TestWhileTheModelLoadsEverythingAnswersWithProgress(t *testing.T) {
	d := startDaemon(t, nil)
	d.loaded()
	d.model.mu.Lock() // as it was a moment ago
	d.model.err, d.model.done, d.model.total = nil, 42, 100
	d.model.mu.Unlock()
	code, header, body := d.get("/v1/models")
	if code != 503 || header.Get("Retry-After") == "" || !strings.Contains(body, "42 %") || !strings.Contains(body, `"code":"loading"`) {
		t.Errorf("API: %d %v %s", code, header, body)
	}
	d.page("GET /test-page", func(w http.ResponseWriter, r *http.Request) { t.Error("the page was served without a model") })
	code, header, body = d.get("/test-page", "Accept", "text/html,*/*")
	if code != 503 || header.Get("Refresh") == "" || !strings.Contains(body, `<progress max="100" value="42"`) || !strings.Contains(body, "<title>") {
		t.Errorf("page: %d %v %s", code, header, body)
	}
	if code, _, body := d.get("/readyz"); code != 503 || !strings.Contains(body, `"status":"loading","progress":0.42`) {
		t.Errorf("readyz: %d %s", code, body)
	}
}

func TestEveryRouteIsGuardedAndEveryResponseCarriesTheHeaders(t *testing.T) {
	d := startDaemon(t, nil)
	for _, path := range []string{"/", "/metrics", "/ws", "/v1/models", "/static/app.css", "/favicon.ico", "/nowhere", "/x/../healthz", "//readyz", "/healthz/", "/readyz.json", "/%68ealthz/x"} {
		code, header, _ := d.do("GET", path, "")
		if code != http.StatusUnauthorized {
			t.Errorf("%s without credentials: %d, want 401", path, code)
		}
		checkHeaders(t, path, header)
		if code, _, _ := d.get(path, "Host", "evil.example"); code != http.StatusForbidden {
			t.Errorf("%s for a foreign host: %d, want 403", path, code)
		}
		if code, _, _ := d.get(path, "Origin", "http://evil.example"); code != http.StatusForbidden {
			t.Errorf("%s from a foreign origin: %d, want 403", path, code)
		}
	}
	if code, header, body := d.get("/favicon.ico"); code != 200 || header.Get("Content-Type") != "image/svg+xml" || !strings.HasPrefix(body, "<svg") {
		t.Errorf("the icon: %d %q %.20q", code, header.Get("Content-Type"), body)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503} {
		code, header, _ := d.do("GET", path, "")
		if code != want {
			t.Errorf("%s without credentials: %d, want %d", path, code, want)
		}
		checkHeaders(t, path, header)
		if code, _, _ := d.do("GET", path, "", "Host", "evil.example"); code != http.StatusForbidden {
			t.Errorf("%s for a foreign host: %d, want 403", path, code)
		}
		if code, _, _ := d.do("GET", path, "", "X-Api-Key", "guess"); code != http.StatusUnauthorized {
			t.Errorf("%s with a wrong token: %d, want 401", path, code)
		}
	}
	if code, header, _ := d.do("OPTIONS", "/v1/models", "", "Origin", "http://evil.example", "Access-Control-Request-Method", "GET"); code != 403 || header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("preflight of a foreign origin: %d %v", code, header)
	}
}

func checkHeaders(t *testing.T, path string, h http.Header) {
	t.Helper()
	want := map[string]string{
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "X-Frame-Options": "DENY",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
	}
	for name, value := range want {
		if h.Get(name) != value {
			t.Errorf("%s: %s is %q, want %q", path, name, h.Get(name), value)
		}
	}
	policy := h.Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe-inline") || strings.Contains(policy, "'unsafe-eval'") {
		t.Errorf("%s: policy %q", path, policy)
	}
}

func TestAVisitorWithoutTheLinkReadsHowToGetIt(t *testing.T) {
	d := startDaemon(t, nil)
	code, header, body := d.do("GET", "/", "", "Accept", "text/html")
	if code != 401 || !strings.HasPrefix(header.Get("Content-Type"), "text/html") || !strings.Contains(body, "covey serve") || strings.Contains(body, d.token) {
		t.Errorf("%d %s", code, body)
	}
}

func TestABrowserFollowsTheLinkIntoASession(t *testing.T) {
	d := startDaemon(t, nil)
	seen := Identity{}
	d.always("GET /identity", func(w http.ResponseWriter, r *http.Request) { seen = identify(r.Context()) })
	jar, _ := cookiejar.New(nil)
	client := &http.Client{Jar: jar}
	resp, err := client.Get(d.Link())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || resp.Request.URL.String() != d.base+"/" {
		t.Errorf("status %d at %s", resp.StatusCode, resp.Request.URL)
	}
	if resp, err = client.Get(d.base + "/who"); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp, err = client.Get(d.base + "/identity"); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if seen.Session == "" || !d.auth.pageTokenMatches(seen.Session, seen.PageToken) {
		t.Errorf("identity %+v", seen)
	}
}

func TestAPanicInAHandlerIsA500OfThatRequestOnly(t *testing.T) {
	d := startDaemon(t, nil)
	d.always("GET /panic", func(http.ResponseWriter, *http.Request) { panic("boom") })
	if code, _, body := d.get("/panic"); code != 500 || !strings.Contains(body, `"code":"internal"`) || strings.Contains(body, "boom") {
		t.Errorf("%d %s", code, body)
	}
	if code, _, _ := d.get("/healthz"); code != 200 {
		t.Errorf("healthz afterwards: %d", code)
	}
}

// deadlined is a response whose connection remembers its read deadline.
type deadlined struct {
	*httptest.ResponseRecorder
	read time.Time
}

func (d *deadlined) SetReadDeadline(t time.Time) error { d.read = t; return nil }

// watched is a body that remembers whether there was a deadline when it was read.
type watched struct {
	io.Reader
	w       *deadlined
	bounded bool
	reads   int
}

func (b *watched) Close() error { return nil }
func (b *watched) Read(p []byte) (int, error) {
	b.reads++
	b.bounded = !b.w.read.IsZero()
	return b.Reader.Read(p)
}

func TestEveryBodyIsReadUnderADeadlineAlsoByTheAuthenticator(t *testing.T) {
	d := startDaemon(t, nil)
	token, _ := d.auth.token.current()
	for name, header := range map[string][2]string{
		"a form without page token": {"Cookie", d.auth.cookieName + "=" + d.auth.newSession(token)},
		"an API request":            {"Authorization", "Bearer " + token},
	} {
		w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
		body := &watched{Reader: strings.NewReader("name=x"), w: w}
		r := httptest.NewRequest("POST", "/atlas/x/rename", body)
		r.Host = d.Addr().String()
		r.Header.Set(header[0], header[1])
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		d.Handler().ServeHTTP(w, r)
		if body.reads == 0 || !body.bounded {
			t.Errorf("%s: status %d, %d reads, under a deadline %v", name, w.Code, body.reads, body.bounded)
		}
		if !w.read.IsZero() {
			t.Errorf("%s: the deadline outlived the body", name)
		}
	}
}

func TestABodyOverTheLimitIsCut(t *testing.T) {
	d := startDaemon(t, nil)
	var failure error
	d.always("POST /body", func(w http.ResponseWriter, r *http.Request) { _, failure = io.ReadAll(r.Body) })
	d.do("POST", "/body", strings.Repeat("x", defaultBody+1), "X-Api-Key", d.token)
	var large *http.MaxBytesError
	if !errors.As(failure, &large) {
		t.Errorf("reading gave %v, want http.MaxBytesError", failure)
	}
}

func TestADeadlineOfOneRequestDoesNotOutliveIt(t *testing.T) {
	d := startDaemon(t, nil)
	d.always("GET /deadline", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Millisecond))
	})
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	get := func(path string) (int, error) {
		r, err := http.NewRequest("GET", d.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", d.token)
		resp, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	get("/deadline") // may or may not arrive
	time.Sleep(5 * time.Millisecond)
	if code, err := get("/metrics"); code != 200 || err != nil {
		t.Errorf("the next request on the connection: %d %v", code, err)
	}
}

func TestStoppingLetsRunningTasksEndAndCutsThemAtTheDrain(t *testing.T) {
	d := startDaemon(t, nil) // drains for a second
	quick, cut := make(chan struct{}), make(chan struct{})
	started := make(chan struct{}, 2)
	d.Go(func(ctx context.Context) {
		started <- struct{}{}
		select {
		case <-time.After(50 * time.Millisecond): // a generation about to end
			close(quick)
		case <-ctx.Done():
		}
	})
	d.Go(func(ctx context.Context) {
		started <- struct{}{}
		<-ctx.Done() // a generation that would go on for ever
		close(cut)
	})
	<-started
	<-started
	if err := d.stop(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]chan struct{}{"the task about to end was cut": quick, "the endless task was not cut": cut} {
		select {
		case <-c:
		default:
			t.Error(name)
		}
	}
	if d.Go(func(context.Context) {}) {
		t.Error("a stopped daemon takes tasks")
	}
}

func TestTheMachinesFaultsAreNamedBeforeAnythingRuns(t *testing.T) {
	first := startDaemon(t, nil)
	cases := []struct {
		name, code string
		change     func(*testing.T, *Config)
	}{
		{"port in use", "port_in_use", func(t *testing.T, c *Config) { c.Addr = first.Addr().String() }},
		{"data folder in use", "data_in_use", func(t *testing.T, c *Config) { c.Data = first.cfg.Data }},
		{"data folder is a file", "data_folder", func(t *testing.T, c *Config) {
			c.Data = filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(c.Data, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"certificate missing", "tls", func(t *testing.T, c *Config) { c.TLSCert, c.TLSKey = "none.pem", "none.pem" }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := goodConfig()
			config.Data = t.TempDir()
			c.change(t, &config)
			s, err := New(context.Background(), config, "test", quiet)
			if err == nil {
				s.listener.Close()
				t.Fatal("no error")
			}
			if e := AsError(err); e.Code != c.code || e.Kind != KindEnvironment {
				t.Errorf("got code %q kind %d: %v", e.Code, e.Kind, err)
			}
		})
	}
}

func TestADamagedDatabaseIsNamedAndKept(t *testing.T) {
	dir := t.TempDir()
	config := goodConfig()
	config.Data = dir
	s, err := New(context.Background(), config, "test", quiet)
	if err != nil {
		t.Fatal(err)
	}
	s.listener.Close()
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.db"))
	if len(files) != 1 {
		t.Fatalf("database files: %v", files)
	}
	damaged := []byte(strings.Repeat("this is no database ", 500))
	if err := os.WriteFile(files[0], damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = New(context.Background(), config, "test", quiet); err == nil || AsError(err).Code != "data_damaged" {
		t.Errorf("got %v, want data_damaged", err)
	}
	if raw, _ := os.ReadFile(files[0]); string(raw) != string(damaged) {
		t.Error("the damaged file was changed")
	}
}

func TestARefusalsPageLeadsBackWhereThereIsASession(t *testing.T) {
	refused := func(id Identity) string {
		r := httptest.NewRequest("GET", "/c/gone", nil)
		r.Header.Set("Accept", "text/html")
		w := httptest.NewRecorder()
		refuse(w, r.WithContext(withIdentity(r.Context(), id)), http.StatusNotFound, problem(KindUsage, "not_found", "", nil, "this conversation is not there"))
		return w.Body.String()
	}
	const link = `<a href="/">Open Covey</a>`
	if page := refused(Identity{Session: "s"}); !strings.Contains(page, link) {
		t.Errorf("no way back: %s", page)
	}
	if page := refused(Identity{}); strings.Contains(page, link) {
		t.Errorf("a visitor without a session is sent on: %s", page)
	}
}

package daemon

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// newTestAuth is an authenticator of a daemon on 127.0.0.1:8420.
func newTestAuth(t *testing.T, allow ...string) (a *authenticator, token string) {
	t.Helper()
	file, err := openToken(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	token, _ = file.current()
	return newAuthenticator(file, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8420}, allow, false, quiet), token
}

const goodHost = "127.0.0.1:8420"

func request(method, path, host string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func TestHostMustBeOnTheExactAllowList(t *testing.T) {
	a, token := newTestAuth(t, "box.example", "proxy.example:443")
	cases := []struct {
		host string
		want int
	}{
		{"127.0.0.1:8420", 200},
		{"localhost:8420", 200},
		{"LOCALHOST:8420", 200},
		{"[::1]:8420", 200},
		{"box.example:8420", 200},
		{"proxy.example:443", 200},
		{"", 403},
		{"127.0.0.1", 403},
		{"127.0.0.1:8421", 403},
		{"127.0.0.2:8420", 403},
		{"localhost.evil.example:8420", 403},
		{"evil-localhost:8420", 403},
		{"localhost:8420.evil.example", 403},
		{"box.example", 403},
		{"sub.box.example:8420", 403},
		{"0.0.0.0:8420", 403},
		{"127.1:8420", 403},
		{"user@127.0.0.1:8420", 403},
	}
	for _, c := range cases {
		_, ref := a.authenticate(request("GET", "/", c.host, "Authorization", "Bearer "+token))
		if got := status(ref); got != c.want {
			t.Errorf("Host %q: got %d, want %d", c.host, got, c.want)
		}
	}
}

func status(ref *refusal) int {
	if ref == nil {
		return http.StatusOK
	}
	return ref.status
}

func TestOriginAndFetchSiteMustBeOurs(t *testing.T) {
	a, token := newTestAuth(t)
	cases := []struct {
		name    string
		method  string
		headers []string
		want    int
	}{
		{"no origin", "GET", nil, 200},
		{"our origin", "POST", []string{"Origin", "http://127.0.0.1:8420"}, 200},
		{"our other name", "POST", []string{"Origin", "http://localhost:8420"}, 200},
		{"null origin", "GET", []string{"Origin", "null"}, 403},
		{"foreign origin", "GET", []string{"Origin", "https://evil.example"}, 403},
		{"https instead of http", "GET", []string{"Origin", "https://127.0.0.1:8420"}, 403},
		{"other port", "GET", []string{"Origin", "http://127.0.0.1:9000"}, 403},
		{"our origin as a prefix", "GET", []string{"Origin", "http://127.0.0.1:8420.evil.example"}, 403},
		{"two origins", "GET", []string{"Origin", "http://127.0.0.1:8420", "Origin", "http://localhost:8420"}, 403},
		{"same-origin fetch", "POST", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"typed address", "GET", []string{"Sec-Fetch-Site", "none"}, 200},
		{"cross-site link", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{"cross-site form", "POST", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403},
		{"cross-site frame", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{"cross-site image", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, 403},
		{"other port of this machine", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 403},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			headers := append([]string{"Authorization", "Bearer " + token}, c.headers...)
			_, ref := a.authenticate(request(c.method, "/", goodHost, headers...))
			if got := status(ref); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestEverySpellingOfCredentials(t *testing.T) {
	a, token := newTestAuth(t)
	session := a.newSession(token)
	other, otherToken := newTestAuth(t)
	cookie := func(value string) []string { return []string{"Cookie", a.cookieName + "=" + value} }
	cases := []struct {
		name    string
		headers []string
		want    int
	}{
		{"nothing", nil, 401},
		{"bearer", []string{"Authorization", "Bearer " + token}, 200},
		{"bearer in lower case", []string{"authorization", "bearer " + token}, 200},
		{"bearer with blanks", []string{"Authorization", "Bearer   " + token + " "}, 200},
		{"api key", []string{"X-Api-Key", token}, 200},
		{"api key in lower case", []string{"x-api-key", token}, 200},
		{"both right", []string{"Authorization", "Bearer " + token, "X-Api-Key", token}, 200},
		{"basic scheme", []string{"Authorization", "Basic " + token}, 401},
		{"no scheme", []string{"Authorization", token}, 401},
		{"empty bearer", []string{"Authorization", "Bearer "}, 401},
		{"empty api key", []string{"X-Api-Key", ""}, 401},
		{"cut token", []string{"Authorization", "Bearer " + token[:42]}, 401},
		{"longer token", []string{"Authorization", "Bearer " + token + "A"}, 401},
		{"right bearer, wrong api key", []string{"Authorization", "Bearer " + token, "X-Api-Key", otherToken}, 401},
		{"wrong bearer, right api key", []string{"Authorization", "Bearer " + otherToken, "X-Api-Key", token}, 401},
		{"two bearers, one wrong", []string{"Authorization", "Bearer " + token, "Authorization", "Bearer x"}, 401},
		{"cookie", cookie(session), 200},
		{"right cookie, wrong bearer", append(cookie(session), "Authorization", "Bearer x"), 401},
		{"wrong cookie, right bearer", append(cookie("x"), "Authorization", "Bearer "+token), 200},
		{"token itself as cookie", cookie(token), 401},
		{"cookie of another daemon", cookie(other.newSession(otherToken)), 401},
		{"forged id", cookie("AAAA" + session[4:]), 401},
		{"cut mac", cookie(session[:len(session)-1]), 401},
		{"no mac", cookie(strings.Join(strings.Split(session, ".")[:2], ".") + "."), 401},
		{"cookie twice", append(cookie(session), cookie(session)...), 401},
		{"cookie under another port's name", []string{"Cookie", "covey_8421=" + session}, 401},
		{"token in the query of an API", nil, 401},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, ref := a.authenticate(request("GET", "/v1/models?token="+token, goodHost, c.headers...))
			if got := status(ref); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestACookieAloneReadsButChangesNothing(t *testing.T) {
	a, token := newTestAuth(t)
	session := a.newSession(token)
	id, _ := a.openSession(token, session)
	page := a.pageToken(token, id)
	foreign := a.newSession(token)
	foreignID, _ := a.openSession(token, foreign)
	form := func(token string) string { return url.Values{PageTokenField: {token}, "text": {"hello"}}.Encode() }
	cases := []struct {
		name, method, header, form string
		want                       int
	}{
		{"GET", "GET", "", "", 200},
		{"HEAD", "HEAD", "", "", 200},
		{"POST", "POST", "", "", 403},
		{"DELETE", "DELETE", "", "", 403},
		{"POST with the page token", "POST", page, "", 200},
		{"PUT with the page token", "PUT", page, "", 200},
		{"POST with another session's page token", "POST", a.pageToken(token, foreignID), "", 403},
		{"POST with the token itself", "POST", token, "", 403},
		{"form with the page token", "POST", "", form(page), 200},
		{"form with a wrong page token", "POST", "", form("x"), 403},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, "/", strings.NewReader(c.form))
			r.Host = goodHost
			r.Header.Set("Cookie", a.cookieName+"="+session)
			if c.header != "" {
				r.Header.Set(PageTokenHeader, c.header)
			}
			if c.form != "" {
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			_, ref := a.authenticate(r)
			if got := status(ref); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
			if ref == nil && c.form != "" && r.PostForm.Get("text") != "hello" {
				t.Error("the handler cannot read the form any more")
			}
		})
	}
}

func TestLinkBecomesACookieAndLeavesTheAddressBar(t *testing.T) {
	a, token := newTestAuth(t)
	w := httptest.NewRecorder()
	link, err := url.Parse(a.link(goodHost))
	if err != nil || link.Query().Get("token") != token {
		t.Fatalf("link %v, error %v", link, err)
	}
	isLink, ref := a.exchange(w, request("GET", link.RequestURI(), goodHost))
	if !isLink || ref != nil || w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/" {
		t.Fatalf("link %v, refusal %v, status %d, location %q", isLink, ref, w.Code, w.Header().Get("Location"))
	}
	c := w.Result().Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || strings.Contains(c.Value, token) {
		t.Errorf("cookie %+v", c)
	}
	if _, ref := a.authenticate(request("GET", "/", goodHost, "Cookie", c.Name+"="+c.Value)); ref != nil {
		t.Errorf("the cookie is refused: %v", ref.err)
	}
	for name, r := range map[string]*http.Request{
		"wrong token":  request("GET", "/?token="+token[1:], goodHost),
		"foreign host": request("GET", "/?token="+token, "evil.example"),
	} {
		w := httptest.NewRecorder()
		isLink, ref := a.exchange(w, r)
		if !isLink || ref == nil || len(w.Result().Cookies()) > 0 {
			t.Errorf("%s: link %v, refusal %v, cookies %v", name, isLink, ref, w.Result().Cookies())
		}
	}
	if isLink, _ := a.exchange(httptest.NewRecorder(), request("POST", "/?token="+token, goodHost)); isLink {
		t.Error("a POST was taken for the link")
	}
}

func TestSessionsEndAfterThirtyDaysAndWithTheToken(t *testing.T) {
	a, token := newTestAuth(t)
	session := a.newSession(token)
	a.now = func() time.Time { return time.Now().Add(sessionLife - time.Minute) }
	if _, ok := a.openSession(token, session); !ok {
		t.Error("the session is over before its time")
	}
	a.now = func() time.Time { return time.Now().Add(sessionLife + time.Minute) }
	if _, ok := a.openSession(token, session); ok {
		t.Error("the session outlived its time")
	}
	a.now = func() time.Time { return time.Now().Add(-time.Hour) }
	if _, ok := a.openSession(token, session); ok {
		t.Error("a session from the future is accepted")
	}
	a.now = time.Now
	rotated := false
	a.token.onChange = func() { rotated = true }
	fresh, err := RotateToken(a.token.dir)
	if err != nil {
		t.Fatal(err)
	}
	a.token.looked = time.Time{} // the look of a second later
	if _, ref := a.authenticate(request("GET", "/", goodHost, "Cookie", a.cookieName+"="+session)); status(ref) != 401 {
		t.Error("a session outlived the rotation of the token")
	}
	if _, ref := a.authenticate(request("GET", "/", goodHost, "X-Api-Key", fresh)); ref != nil || !rotated {
		t.Errorf("new token refused (%v) or rotation not announced (%v)", ref, rotated)
	}
}

func TestFailuresAreLimitedButTheOwnerAlwaysGetsIn(t *testing.T) {
	a, token := newTestAuth(t)
	now := time.Now()
	a.now = func() time.Time { return now }
	last := 0
	for range 25 {
		_, ref := a.authenticate(request("GET", "/", goodHost, "X-Api-Key", "guess"))
		last = status(ref)
	}
	if last != http.StatusTooManyRequests {
		t.Errorf("after 25 guesses: status %d, want 429", last)
	}
	if _, ref := a.authenticate(request("GET", "/", goodHost, "X-Api-Key", token)); ref != nil {
		t.Errorf("the owner is locked out: %v", ref.err)
	}
	elsewhere := request("GET", "/", goodHost, "X-Api-Key", "guess")
	elsewhere.RemoteAddr = "192.0.2.7:1"
	if _, ref := a.authenticate(elsewhere); status(ref) != 401 {
		t.Errorf("another address shares the limit: status %d, want 401", status(ref))
	}
}

func FuzzSession(f *testing.F) {
	f.Add("")
	f.Add("id.0.mac")
	f.Add("...")
	f.Add("AAAA.zzzzzzzzzzzzzz.")
	f.Fuzz(func(t *testing.T, value string) {
		a := &authenticator{now: time.Now}
		if id, ok := a.openSession("the token that nobody has", value); ok {
			t.Errorf("a forged session %q was opened as %q", value, id)
		}
	})
}

func TestAFloodOfGuessesDoesNotFillTheLog(t *testing.T) {
	a, _ := newTestAuth(t)
	var log bytes.Buffer
	a.log = slog.New(slog.NewTextHandler(&log, nil))
	counted := 0
	a.failed = func(string) { counted++ }
	for range 1000 {
		a.authenticate(request("GET", "/", goodHost, "X-Api-Key", "guess"))
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || counted < 1000 {
		t.Errorf("%d lines of log and %d failures counted, want 1 and all:\n%.500s", lines, counted, log.String())
	}
}

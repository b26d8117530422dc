package daemon

// Who may do what. One authenticator guards every route, static files and sockets included, in this order:
//
//  1. Host must be on the exact allow-list (DNS rebinding), whatever the bind address.
//  2. Origin, when sent, must be one of the origins of those hosts; Sec-Fetch-Site, when sent, must not name another
//     site except for a plain navigation (cross-site requests, other ports of this machine).
//  3. A header credential (Authorization: Bearer or X-Api-Key) must be the token. If one is presented and wrong, the
//     request fails: no falling back to a cookie, and two headers must both be right.
//  4. Otherwise the session cookie decides. The cookie alone reads pages; an unsafe method must also carry the page
//     token, and a socket must carry it in its first message (socket.go).
//
// Sessions are stateless: the cookie holds a random id, the time of issue and a MAC keyed by the token, so they survive
// a restart and die with a rotation. The page token is another MAC over the session id, so each session has its own.

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// PageTokenHeader carries the page token on unsafe requests; forms carry it as the field PageTokenField.
	PageTokenHeader = "X-Covey-Page"
	PageTokenField  = "page_token"

	sessionLife = 30 * 24 * time.Hour
	formLimit   = 1 << 20 // bytes of a form that is read for its page token
)

// Identity is who sent a request. It lies in the request's context.
type Identity struct {
	Known     bool   // the request showed the token or a session; false only on open routes
	Session   string // random id of the browser session; "" for an API client
	PageToken string // what this session's pages must send back; "" for an API client
}

// API says whether the request carried the token itself.
func (i Identity) API() bool { return i.Known && i.Session == "" }

type identityKey struct{}

// identify returns who sent the request with this context; the zero Identity on open routes.
func identify(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}

// authenticator decides for every request. Safe for concurrent use.
type authenticator struct {
	token      *tokenFile
	hosts      map[string]bool // exact values of Host
	origins    map[string]bool // exact values of Origin
	secure     bool            // cookies only over TLS
	cookieName string
	log        *slog.Logger
	failed     func(reason string) // counts refusals
	now        func() time.Time

	flood    rate.Sometimes // bounds log lines about failures
	mu       sync.Mutex
	failures map[string]*rate.Limiter // by remote address
}

// newAuthenticator builds the allow-lists: the loopback names if the bind address is loopback, the address itself, and
// the configured names, each with the port (and without it where the port is the scheme's own).
func newAuthenticator(token *tokenFile, listen *net.TCPAddr, allow []string, secure bool, log *slog.Logger) *authenticator {
	a := &authenticator{
		token: token, hosts: map[string]bool{}, origins: map[string]bool{}, secure: secure, log: log,
		failed: func(string) {}, now: time.Now, failures: map[string]*rate.Limiter{},
		flood: rate.Sometimes{Interval: time.Minute},
		// Cookies know no ports: the name keeps daemons on one host apart.
		cookieName: "covey_" + strconv.Itoa(listen.Port),
	}
	scheme, usual := "http", 80
	if secure {
		scheme, usual = "https", 443
	}
	add := func(host, port string) {
		hosts := []string{net.JoinHostPort(host, port)}
		if port == strconv.Itoa(usual) {
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			hosts = append(hosts, host)
		}
		for _, h := range hosts {
			a.hosts[h] = true
			a.origins[scheme+"://"+h] = true
		}
	}
	port := strconv.Itoa(listen.Port)
	if listen.IP.IsLoopback() || listen.IP.IsUnspecified() {
		add("127.0.0.1", port)
		add("localhost", port)
		add("::1", port)
	}
	if !listen.IP.IsUnspecified() {
		add(listen.IP.String(), port)
	}
	for _, name := range allow {
		name = strings.ToLower(name)
		if host, p, err := net.SplitHostPort(name); err == nil {
			add(host, p)
		} else {
			add(name, port)
		}
	}
	return a
}

// refusal is the answer to a request that may not pass.
type refusal struct {
	status     int
	err        *Error
	retryAfter time.Duration
}

// authenticate decides about one request. On success it returns the identity.
func (a *authenticator) authenticate(r *http.Request) (Identity, *refusal) {
	if ref := a.checkSource(r); ref != nil {
		return Identity{}, ref
	}
	id, ref := a.credential(r)
	if ref != nil {
		return Identity{}, a.limit(r, ref)
	}
	if id.API() || safeMethod(r.Method) {
		return id, nil
	}
	if !a.pageTokenMatches(id.Session, requestPageToken(r)) {
		a.failed("page_token")
		return Identity{}, a.limit(r, &refusal{status: http.StatusForbidden, err: problem(KindUsage, "page_token",
			"reload the page", nil, "the request does not carry this page's token")})
	}
	return id, nil
}

// authenticateOpen decides about a request to an open route, which anybody on the allow-lists may make. Whoever shows
// credentials is known there too; a wrong token is a failure like elsewhere, so that no route can be used to guess.
func (a *authenticator) authenticateOpen(r *http.Request) (Identity, *refusal) {
	if ref := a.checkSource(r); ref != nil {
		return Identity{}, ref
	}
	token := len(r.Header.Values("Authorization"))+len(r.Header.Values("X-Api-Key")) > 0
	if !token && len(r.CookiesNamed(a.cookieName)) == 0 {
		return Identity{}, nil
	}
	id, ref := a.credential(r)
	if ref != nil && token {
		return Identity{}, a.limit(r, ref)
	}
	return id, nil
}

// checkSource holds the request to the Host and Origin allow-lists. It needs no credentials.
func (a *authenticator) checkSource(r *http.Request) *refusal {
	forbid := func(reason, hint, format string, args ...any) *refusal {
		a.failed(reason)
		return &refusal{status: http.StatusForbidden, err: problem(KindUsage, reason, hint, nil, format, args...)}
	}
	if !a.hosts[strings.ToLower(r.Host)] {
		return forbid("host_not_allowed", "start the daemon with --allow-host NAME if this name is yours",
			"the host name %q is not on the allow-list", clip(r.Host, 100))
	}
	origins := r.Header.Values("Origin")
	for _, origin := range origins {
		if !a.origins[strings.ToLower(origin)] {
			return forbid("origin_not_allowed", "open the page from the link that the daemon printed",
				"the origin %q is not on the allow-list", clip(origin, 100))
		}
	}
	if len(origins) > 1 {
		return forbid("origin_not_allowed", "", "more than one origin was sent")
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		navigation := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
		if !navigation || !safeMethod(r.Method) {
			return forbid("cross_site", "", "the request comes from another site")
		}
	}
	return nil
}

// credential finds who sent the request, by headers or else by cookie.
func (a *authenticator) credential(r *http.Request) (Identity, *refusal) {
	token, sum := a.token.current()
	unauthorised := func(reason, format string, args ...any) *refusal {
		a.failed(reason)
		return &refusal{status: http.StatusUnauthorized, err: problem(KindUsage, reason,
			"open the link that covey serve printed, or send the token (covey token) as Authorization: Bearer", nil, format, args...)}
	}
	presented, right := 0, 0
	try := func(secret string, ok bool) {
		presented++
		if ok && sameSecret(secret, sum) {
			right++
		}
	}
	for _, value := range r.Header.Values("Authorization") {
		scheme, secret, ok := strings.Cut(value, " ")
		try(strings.TrimSpace(secret), ok && strings.EqualFold(scheme, "bearer"))
	}
	for _, value := range r.Header.Values("X-Api-Key") {
		try(value, true)
	}
	if presented > 0 {
		if right != presented {
			return Identity{}, unauthorised("bad_credentials", "the token in the request headers is not this daemon's")
		}
		return Identity{Known: true}, nil
	}
	cookies := r.CookiesNamed(a.cookieName)
	if len(cookies) == 0 {
		return Identity{}, unauthorised("no_credentials", "this daemon answers only to those who hold its token")
	}
	session, ok := a.openSession(token, cookies[0].Value)
	if len(cookies) > 1 || !ok {
		return Identity{}, unauthorised("bad_session", "this browser's session is over")
	}
	return Identity{Known: true, Session: session, PageToken: a.pageToken(token, session)}, nil
}

// limit turns a refusal into "too many failures" when its sender has failed too often. Only failures are limited: the
// holder of the token always gets in, so nobody on the same machine can lock the owner out.
func (a *authenticator) limit(r *http.Request, ref *refusal) *refusal {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	a.mu.Lock()
	l := a.failures[host]
	if l == nil {
		if len(a.failures) >= 4096 { // bounded memory under a flood from many addresses
			clear(a.failures)
		}
		l = rate.NewLimiter(rate.Every(3*time.Second), 20)
		a.failures[host] = l
	}
	a.mu.Unlock()
	if l.AllowN(a.now(), 1) {
		return ref
	}
	a.failed("rate_limited")
	// Not a line for each: whoever holds no token must not be able to fill the disk. The metrics count all of them.
	a.flood.Do(func() {
		a.log.Warn("many failed authentications", slog.String("remote", host), slog.String("reason", ref.err.Code))
	})
	return &refusal{status: http.StatusTooManyRequests, retryAfter: 3 * time.Second, err: problem(KindUsage, "too_many_failures",
		"wait a few seconds; covey token prints the right token", nil, "too many failed attempts from this address")}
}

// exchange answers the printed link: a GET with ?token=. It reports whether the request was one.
func (a *authenticator) exchange(w http.ResponseWriter, r *http.Request) (bool, *refusal) {
	if r.Method != http.MethodGet || r.URL.Path != "/" || !r.URL.Query().Has("token") {
		return false, nil
	}
	if ref := a.checkSource(r); ref != nil {
		return true, ref
	}
	token, sum := a.token.current()
	if !sameSecret(r.URL.Query().Get("token"), sum) {
		a.failed("bad_link")
		return true, a.limit(r, &refusal{status: http.StatusUnauthorized, err: problem(KindUsage, "bad_link",
			"open the newest link that covey serve printed, or run covey token", nil, "the token in this link is not this daemon's")})
	}
	http.SetCookie(w, &http.Cookie{
		Name: a.cookieName, Value: a.newSession(token), Path: "/", HttpOnly: true, Secure: a.secure,
		SameSite: http.SameSiteStrictMode, MaxAge: int(sessionLife / time.Second),
	})
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, "/", http.StatusSeeOther)
	return true, nil
}

// newSession makes the cookie's value: id.issued.mac.
func (a *authenticator) newSession(token string) string {
	id := rand.Text()
	issued := strconv.FormatInt(a.now().Unix(), 36)
	return id + "." + issued + "." + mac(token, "session", id+"."+issued)
}

// openSession checks a cookie's value and returns the session's id.
func (a *authenticator) openSession(token, value string) (id string, ok bool) {
	parts := strings.Split(value, ".")
	if len(parts) != 3 || len(value) > 256 {
		return "", false
	}
	if !sameMAC(parts[2], mac(token, "session", parts[0]+"."+parts[1])) {
		return "", false
	}
	issued, err := strconv.ParseInt(parts[1], 36, 64)
	age := a.now().Sub(time.Unix(issued, 0))
	return parts[0], err == nil && age > -time.Minute && age < sessionLife
}

func (a *authenticator) pageToken(token, session string) string { return mac(token, "page", session) }

// pageTokenMatches says whether presented is the page token of session.
func (a *authenticator) pageTokenMatches(session, presented string) bool {
	token, _ := a.token.current()
	return session != "" && sameMAC(presented, a.pageToken(token, session))
}

// requestPageToken takes the page token from the header, or from a plain form's field.
func requestPageToken(r *http.Request) string {
	if values := r.Header.Values(PageTokenHeader); len(values) > 0 {
		return values[0]
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/x-www-form-urlencoded" {
		return ""
	}
	r.Body = http.MaxBytesReader(nil, r.Body, formLimit)
	if r.ParseForm() != nil {
		return ""
	}
	return r.PostForm.Get(PageTokenField)
}

func mac(token, use, text string) string {
	h := hmac.New(sha256.New, []byte(token))
	h.Write([]byte("covey " + use + "\x00" + text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// sameSecret compares hashes, so that the time taken tells neither content nor length.
func sameSecret(presented string, sum [sha256.Size]byte) bool {
	got := sha256.Sum256([]byte(presented))
	return subtle.ConstantTimeCompare(got[:], sum[:]) == 1
}

func sameMAC(presented, want string) bool {
	return subtle.ConstantTimeCompare([]byte(presented), []byte(want)) == 1
}

func safeMethod(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// clip shortens hostile input before it is shown.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// link is the address that the daemon prints: opening it exchanges the token for a cookie.
func (a *authenticator) link(host string) string {
	scheme := "http"
	if a.secure {
		scheme = "https"
	}
	token, _ := a.token.current()
	u := url.URL{Scheme: scheme, Host: host, Path: "/", RawQuery: url.Values{"token": {token}}.Encode()}
	return u.String()
}

func withIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

package daemon

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"covey/web/wire"
)

// keyPair writes a certificate for 127.0.0.1 and its key.
func keyPair(t *testing.T) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AddCert(parsed)
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", raw), roots
}

func TestOverTLSCookiesAreSecureAndOriginsAreHTTPS(t *testing.T) {
	cert, key, roots := keyPair(t)
	d := startDaemon(t, func(c *Config) { c.TLSCert, c.TLSKey = cert, key })
	base := "https://" + d.Addr().String()
	if !strings.HasPrefix(d.Link(), base+"/?token=") {
		t.Fatalf("link %s", d.Link())
	}
	jar, _ := cookiejar.New(nil)
	config := &tls.Config{RootCAs: roots}
	client := &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: config}}
	resp, err := client.Get(d.Link())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("Strict-Transport-Security") == "" {
		t.Errorf("status %d, headers %v", resp.StatusCode, resp.Header)
	}
	cookie := resp.Request.Header.Get("Cookie")
	if cookie == "" {
		t.Fatal("the redirect carried no cookie")
	}
	dialer := websocket.Dialer{TLSClientConfig: config}
	for origin, want := range map[string]int{base: 101, "http://" + d.Addr().String(): 403} {
		ws, resp, err := dialer.Dial("wss://"+d.Addr().String()+"/ws", http.Header{"Cookie": {cookie}, "Origin": {origin}})
		if resp == nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Errorf("socket from %s: %d, want %d", origin, resp.StatusCode, want)
		}
		if ws != nil {
			_, value, _ := strings.Cut(cookie, "=")
			id, _ := d.auth.openSession(d.token, value)
			send(t, ws, wire.Hello, 1, "1", d.auth.pageToken(d.token, id))
			if _, err := wire.DecodeWelcome(receive(t, ws)); err != nil {
				t.Error(err)
			}
			ws.Close()
		}
	}
}

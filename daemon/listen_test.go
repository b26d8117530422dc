package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestAPortInUseIsNamedWithItsRemedy(t *testing.T) {
	l, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = listen(l.Addr().String())
	var e *Error
	if !errors.As(err, &e) || e.Code != "port_in_use" || e.Kind != KindEnvironment || e.Hint == "" {
		t.Errorf("got %#v", err)
	}
}

// A client that sends half a body must not hold its connection: without credentials the answer does not wait for the rest,
// with them it comes when the body's time is over.
func TestHalfABodyIsAnswered(t *testing.T) {
	d := startDaemon(t, nil)
	d.loaded()
	half := func(address string) string {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(20 * time.Second)) // of a failing test
		fmt.Fprintf(c, "POST /v1/messages HTTP/1.1\r\nHost: %s\r\nContent-Length: 100\r\n\r\n{", address)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Errorf("no answer: %v", err)
		}
		return strings.TrimSpace(line)
	}
	if got, want := half(d.Addr().String()), "HTTP/1.1 401 Unauthorized"; got != want {
		t.Errorf("without credentials: %q, want %q", got, want)
	}
	timed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		control.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		r.Body = &timedBody{ReadCloser: r.Body, control: control}
		if _, err := io.ReadAll(r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer timed.Close()
	if got, want := half(timed.Listener.Addr().String()), "HTTP/1.1 400 Bad Request"; got != want {
		t.Errorf("with a deadline: %q, want %q", got, want)
	}
}

func TestConnectionsBeyondTheCapAreClosedAtOnce(t *testing.T) {
	inner, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 8)
	l := &cappedListener{Listener: inner, limit: 2, refused: func() { refused <- struct{}{} }}
	defer l.Close()
	accepted := make(chan net.Conn, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	first := <-accepted
	dial()
	<-accepted
	third := dial()
	<-refused
	if _, err := third.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && err == nil {
		t.Errorf("the third connection is open: %v", err)
	}
	first.Close()
	first.Close() // counted once
	dial()
	<-accepted
	dial()
	<-refused
}

func TestOneRemoteAddressTakesAQuarterAtMost(t *testing.T) {
	l := &cappedListener{limit: 8}
	for i, want := range []bool{true, true, false} {
		if got := l.admit("192.0.2.1"); got != want {
			t.Errorf("connection %d of one address: %v, want %v", i, got, want)
		}
	}
	if !l.admit("192.0.2.2") || !l.admit("") {
		t.Error("other addresses are shut out")
	}
	l.release("192.0.2.1")
	if !l.admit("192.0.2.1") {
		t.Error("a closed connection is still counted")
	}
}

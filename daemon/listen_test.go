package daemon

import (
	"errors"
	"io"
	"net"
	"testing"
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

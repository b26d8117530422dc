package daemon

import (
	"errors"
	"net"
	"sync"
	"syscall"
)

// listen opens the address, or says plainly why it cannot.
func listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, problem(KindEnvironment, "port_in_use", "stop the other program (another covey?), or choose a port with --addr HOST:PORT; port 0 takes any free one",
			nil, "%s is in use by another program", addr)
	case errors.Is(err, syscall.EACCES):
		return nil, problem(KindEnvironment, "port_forbidden", "choose a port above 1023 with --addr HOST:PORT", nil, "this user may not listen on %s", addr)
	}
	return nil, problem(KindEnvironment, "listen", "check --addr HOST:PORT", err, "listening on %s", addr)
}

// cappedListener closes connections beyond a total, or beyond a quarter of it for one remote address, at once, instead
// of leaving them to wait in the kernel where a few idle clients could starve everybody else without anybody noticing.
// Loopback addresses share the whole: on one machine they tell nobody apart.
type cappedListener struct {
	net.Listener
	limit   int
	refused func() // counts connections turned away

	mu     sync.Mutex
	open   int
	remote map[string]int // open connections of each address beyond this machine
}

func (l *cappedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := ""
		if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
			addr = tcp.IP.String()
		}
		if l.admit(addr) {
			return &cappedConn{Conn: c, done: func() { l.release(addr) }}, nil
		}
		l.refused()
		c.Close()
	}
}

func (l *cappedListener) admit(addr string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.limit || addr != "" && l.remote[addr] >= max(1, l.limit/4) {
		return false
	}
	l.open++
	if addr != "" {
		if l.remote == nil {
			l.remote = map[string]int{}
		}
		l.remote[addr]++
	}
	return true
}

func (l *cappedListener) release(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if addr == "" {
		return
	}
	if l.remote[addr]--; l.remote[addr] == 0 {
		delete(l.remote, addr)
	}
}

type cappedConn struct {
	net.Conn
	once sync.Once
	done func()
}

func (c *cappedConn) Close() error {
	c.once.Do(c.done)
	return c.Conn.Close()
}

package daemon

import (
	"sync"

	"covey/web/wire"
)

// hub knows the open sockets, so that all can be told something or be closed (http.Server does not close sockets).
type hub struct {
	server *Server

	mu       sync.Mutex
	stopped  bool
	reserved int // upgrades under way and open sockets
	conns    map[*Conn]struct{}
}

func newHub(s *Server) *hub { return &hub{server: s, conns: map[*Conn]struct{}{}} }

// reserve takes one of the places that Config.MaxSockets allows.
func (h *hub) reserve() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reserved >= h.server.cfg.MaxSockets {
		return false
	}
	h.reserved++
	return true
}

func (h *hub) unreserve() {
	h.mu.Lock()
	h.reserved--
	h.mu.Unlock()
}

// add makes c reachable; false once the daemon is stopping.
func (h *hub) add(c *Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return false
	}
	h.conns[c] = struct{}{}
	return true
}

func (h *hub) remove(c *Conn) {
	h.mu.Lock()
	delete(h.conns, c)
	h.mu.Unlock()
}

// each calls f for every open connection, outside the lock.
func (h *hub) each(f func(*Conn)) {
	h.mu.Lock()
	conns := make([]*Conn, 0, len(h.conns))
	for c := range h.conns {
		conns = append(conns, c)
	}
	h.mu.Unlock()
	for _, c := range conns {
		f(c)
	}
}

// size is the number of open connections.
func (h *hub) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.conns)
}

// closeAll closes every connection with a code. After closeGoingAway no new one is admitted.
func (h *hub) closeAll(code int, reason string) {
	h.mu.Lock()
	h.stopped = h.stopped || code == closeGoingAway
	h.mu.Unlock()
	h.each(func(c *Conn) { c.close(code, reason) })
}

// welcomeAll tells every connection about the model, once it has been loaded.
func (h *hub) welcomeAll() {
	w := h.server.welcome()
	h.each(func(c *Conn) { c.Send(Frame{Data: w.Append(nil)}) })
}

// welcome describes the daemon and its model, which is unnamed while it loads.
func (s *Server) welcome() wire.Welcome {
	w := wire.Welcome{Version: wire.Version, Boot: s.boot}
	if eng, err := s.Engine(); err == nil {
		info := eng.Model()
		w.Model, w.Context = info.Name, info.Context
		w.Shape = wire.Shape{Layers: info.Shape.Layers, Experts: info.Shape.Experts, TopK: info.Shape.TopK}
	}
	return w
}

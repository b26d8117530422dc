package daemon

import (
	"net/http"
	"time"
)

// serveHealth answers whether the process is alive. It needs no credentials and says nothing else.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readiness is what /readyz tells everybody who may ask.
type readiness struct {
	Ready    bool    `json:"ready"`
	Status   string  `json:"status"`   // loading, ready, failed or stopping
	Progress float64 `json:"progress"` // of loading, 0 to 1
}

// readinessDetail is what it tells those who hold the token.
type readinessDetail struct {
	readiness
	Done     int64   `json:"bytes_done"`
	Total    int64   `json:"bytes_total"` // 0 = not known yet
	Seconds  float64 `json:"seconds"`     // spent loading so far, or in all
	Model    string  `json:"model,omitempty"`
	Numerics string  `json:"numerics_id,omitempty"`
	Error    string  `json:"error,omitempty"`
	Hint     string  `json:"hint,omitempty"`
	ReadOnly bool    `json:"storage_read_only"` // the disk refuses writes: chat works, history is not kept
	Version  string  `json:"version"`
}

// serveReady answers 200 once requests can be served, and 503 with the progress until then; it gives names, numbers and
// the reason of a failure to those who hold the token.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	body := readinessDetail{Version: s.version, ReadOnly: s.store.ReadOnly() != nil}
	s.model.mu.Lock()
	body.Done, body.Total, body.Seconds = s.model.done, s.model.total, s.model.took.Seconds()
	eng, failure := s.model.eng, s.model.err
	body.Progress = float64(s.model.percent()) / 100
	s.model.mu.Unlock()
	switch {
	case s.draining.Load():
		body.Status = "stopping"
	case failure != nil:
		body.Status, body.Error, body.Hint = "failed", failure.Error(), failure.Hint
	case eng == nil:
		body.Status, body.Seconds = "loading", time.Since(s.started).Seconds()
	default:
		info := eng.Model()
		body.Ready, body.Status, body.Progress, body.Model, body.Numerics = true, "ready", 1, info.ID, info.NumericsID
	}
	status := http.StatusOK
	if !body.Ready {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	if !identify(r.Context()).Known {
		writeJSON(w, status, body.readiness)
		return
	}
	writeJSON(w, status, body)
}

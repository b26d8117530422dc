package daemon

// The OpenAI-compatible HTTP API: models, chat and text completions, whole or streamed. A request is checked before any
// work (openai_request.go), takes one of Config.MaxTasks slots, and is cancelled in the engine as soon as its client
// hangs up: the request's context covers its streams. The engine never waits for a slow client; a client that takes no
// byte for eventDeadline loses the connection.

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"covey/engine"
)

func (s *Server) mountOpenAI() {
	s.page("GET /v1/models", s.serveModels)
	s.page("GET /v1/models/{id...}", s.serveModel)
	s.pageWithBody("POST /v1/chat/completions", apiBody, s.serveChatCompletion)
	s.pageWithBody("POST /v1/completions", apiBody, s.serveCompletion)
}

// apiModel is one entry of the model list. Fields after owned_by are Covey's own.
type apiModel struct {
	ID           string `json:"id"`
	Object       string `json:"object"`
	Created      int64  `json:"created"`
	OwnedBy      string `json:"owned_by"`
	Architecture string `json:"architecture"`
	Context      int    `json:"context_length"`
	Parameters   int64  `json:"parameters"`
	Active       int64  `json:"active_parameters"`
	Experts      int    `json:"experts_per_layer"`
	TopK         int    `json:"experts_per_token"`
	MoELayers    int    `json:"moe_layers"`
	Hash         string `json:"hash"`
	NumericsID   string `json:"numerics_id"`
}

func (s *Server) describeModel(eng *engine.Engine) apiModel {
	i := eng.Model()
	return apiModel{ID: i.ID, Object: "model", Created: s.started.Unix(), OwnedBy: "local", Architecture: i.Architecture, Context: i.Context, Parameters: i.Parameters,
		Active: i.Active, Experts: i.Shape.Experts, TopK: i.Shape.TopK, MoELayers: len(i.Shape.Layers), Hash: i.Hash, NumericsID: i.NumericsID}
}

func (s *Server) serveModels(w http.ResponseWriter, r *http.Request) {
	if eng, ok := s.apiEngine(w); ok {
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []apiModel{s.describeModel(eng)}})
	}
}

func (s *Server) serveModel(w http.ResponseWriter, r *http.Request) {
	eng, ok := s.apiEngine(w)
	if !ok {
		return
	}
	if err := checkModel(eng, r.PathValue("id")); err != nil {
		refuseAPI(w, err)
		return
	}
	writeJSON(w, http.StatusOK, s.describeModel(eng))
}

// apiEngine is the open engine; it refuses the request when there is none.
func (s *Server) apiEngine(w http.ResponseWriter) (*engine.Engine, bool) {
	eng, err := s.Engine()
	if err != nil {
		refuseAPI(w, err)
	}
	return eng, err == nil
}

// readAPI decodes a request's body into q, whose field model names the model that is wanted, and returns the open engine;
// it refuses the request and returns false when there is no engine, no such model or no readable body.
func (s *Server) readAPI(w http.ResponseWriter, r *http.Request, q any, model *string) (*engine.Engine, bool) {
	eng, ok := s.apiEngine(w)
	if !ok {
		return nil, false
	}
	if err := decodeBody(r, q); err != nil {
		refuseAPI(w, err)
		return nil, false
	}
	if err := checkModel(eng, *model); err != nil {
		refuseAPI(w, err)
		return nil, false
	}
	return eng, true
}

// checkModel refuses a model that is not the open one: answering in another's name would be a lie.
func checkModel(eng *engine.Engine, name string) error {
	info := eng.Model()
	if name == "" || name == info.ID || name == info.Name {
		return nil
	}
	return &apiError{http.StatusNotFound, "model", problem(KindUsage, "model_not_found", "leave model out, or say "+info.ID, nil, "the model %q is not open here", clip(name, 100))}
}

// refuseAPI answers with an error in OpenAI's shape and the fitting status.
func refuseAPI(w http.ResponseWriter, err error) {
	status, e, param := 0, (*Error)(nil), ""
	if refused := (*apiError)(nil); errors.As(err, &refused) {
		status, e, param = refused.status, refused.err, refused.param
	} else {
		status, e = apiFailure(err)
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	refuseJSON(w, status, e, param)
}

// apiFailure maps an error of the engine or the daemon to a status and an Error.
func apiFailure(err error) (int, *Error) {
	switch {
	case errors.Is(err, engine.ErrQueueFull):
		return http.StatusTooManyRequests, problem(KindEnvironment, "queue_full", "try again in a moment", err, "too many requests are waiting")
	case errors.Is(err, engine.ErrTooLong):
		return http.StatusBadRequest, problem(KindInput, "context_length_exceeded", "shorten the messages", err, "the prompt does not fit the model's context")
	case errors.Is(err, engine.ErrInvalid):
		return http.StatusBadRequest, problem(KindUsage, "invalid_value", "", err, "the engine does not accept the request")
	case errors.Is(err, engine.ErrClosed), errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable, problem(KindEnvironment, "stopping", "", nil, "the daemon is stopping")
	}
	e := AsError(err)
	switch {
	case e.Code == "loading" || e.Code == "load_failed":
		return http.StatusServiceUnavailable, e
	case e.Kind == KindUsage || e.Kind == KindInput:
		return http.StatusBadRequest, e
	}
	return http.StatusInternalServerError, e
}

// acquire takes an API slot, or refuses.
func (s *Server) acquire() (release func(), err error) {
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	default:
		return nil, &apiError{http.StatusTooManyRequests, "", problem(KindEnvironment, "queue_full", "try again in a moment", nil, "%d requests are being served already", cap(s.slots))}
	}
}

// randomSeed is the seed of a request that names none.
func randomSeed() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return binary.LittleEndian.Uint64(b[:])
}

// promptBytesPerToken bounds a prompt before it is split into tokens, which takes a second and 150 MB for each megabyte.
// Honest text has 3 to 5 bytes a token; runs of one character reach 64 with vocabularies that have tokens for them.
const promptBytesPerToken = 64

// checkBytes refuses a prompt that has no chance to fit the context, before anything is done with it.
func checkBytes(n, context int, param string) error {
	if n <= context*promptBytesPerToken {
		return nil
	}
	return &apiError{http.StatusBadRequest, param, problem(KindInput, "context_length_exceeded", "shorten the prompt", nil,
		"the prompt has %d bytes and the model's context holds %d tokens", n, context)}
}

// fit limits a request's answer to what the context leaves after its prompt; param is where the prompt came from.
func fit(r *engine.Request, context int, param string) error {
	if len(r.Prompt) == 0 {
		return badParam(param, "the prompt has no token")
	}
	if len(r.Prompt) >= context {
		return &apiError{http.StatusBadRequest, param, problem(KindInput, "context_length_exceeded", "shorten the prompt", nil,
			"the prompt takes %d tokens and the model's context holds %d", len(r.Prompt), context)}
	}
	r.MaxTokens = min(r.MaxTokens, context-len(r.Prompt))
	return nil
}

// choiceOutput is an output of one choice, or (result set) its end.
type choiceOutput struct {
	choice int
	output engine.Output
	result *engine.Result
}

// generate submits one request for each choice and yields their outputs as they come until all have ended, an error
// occurs or yield returns one. Cancelled streams are waited for, so that nothing of the request runs on.
func (s *Server) generate(ctx context.Context, eng *engine.Engine, r engine.Request, choices int, accepted func() error, yield func(choiceOutput) error) error {
	ctx, cancel := context.WithCancel(ctx)
	outputs := make(chan choiceOutput)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for i := range choices {
		r.Choice = i
		stream, err := eng.Submit(ctx, r)
		if err != nil {
			return err
		}
		readers.Go(func() {
			for {
				out, err := stream.Next(context.WithoutCancel(ctx)) // ends soon after ctx does: Submit's context cancels the request
				c := choiceOutput{choice: i, output: out}
				if errors.Is(err, io.EOF) {
					c.result = stream.Result()
					s.metrics.finished("api", c.result)
				}
				select {
				case outputs <- c:
				case <-ctx.Done():
				}
				if err != nil {
					return
				}
			}
		})
	}
	if err := accepted(); err != nil {
		return err
	}
	for running := choices; running > 0; {
		select {
		case out := <-outputs:
			if out.result != nil {
				running--
				if out.result.Finish == engine.FinishError {
					return out.result.Err
				}
				if out.result.Finish == engine.FinishCancel {
					return context.Canceled
				}
			}
			if err := yield(out); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

const (
	eventDeadline = 30 * time.Second // a client must take an event within
	keepAlive     = 15 * time.Second // a comment is sent after this long without an event
)

// eventStream writes server-sent events. Safe for concurrent use.
type eventStream struct {
	mu      sync.Mutex
	w       http.ResponseWriter
	control *http.ResponseController
	last    time.Time
	stop    chan struct{}
	stopped sync.WaitGroup
}

// newEventStream sends the header and keeps the connection alive until close.
func newEventStream(w http.ResponseWriter) *eventStream {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no") // proxies must not collect tokens
	w.WriteHeader(http.StatusOK)
	e := &eventStream{w: w, control: http.NewResponseController(w), last: time.Now(), stop: make(chan struct{})}
	e.stopped.Go(func() {
		ticker := time.NewTicker(keepAlive)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				e.comment()
			case <-e.stop:
				return
			}
		}
	})
	return e
}

func (e *eventStream) close() {
	close(e.stop)
	e.stopped.Wait()
}

func (e *eventStream) comment() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.last) >= keepAlive {
		e.write([]byte(": waiting\n\n")) // a failure shows at the next event
	}
}

// write sends bytes at once. The caller holds mu.
func (e *eventStream) write(b []byte) error {
	e.last = time.Now()
	if err := e.control.SetWriteDeadline(e.last.Add(eventDeadline)); err != nil {
		return err
	}
	if _, err := e.w.Write(b); err != nil {
		return err
	}
	return e.control.Flush()
}

// send writes one event with JSON data.
func (e *eventStream) send(v any) error { return e.sendNamed("", v) }

// sendNamed writes one event with a name, if it is not "", and JSON data.
func (e *eventStream) sendNamed(name string, v any) error {
	var b bytes.Buffer
	if name != "" {
		b.WriteString("event: " + name + "\n")
	}
	b.WriteString("data: ")
	if err := encodeJSON(&b, v); err != nil {
		return err
	}
	b.WriteString("\n") // encodeJSON has written the first
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.write(b.Bytes())
}

// done writes OpenAI's end mark.
func (e *eventStream) done() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.write([]byte("data: [DONE]\n\n"))
}

// fail reports an error after the header has gone.
func (e *eventStream) fail(err error) {
	status, problem := apiFailure(err)
	e.sendNamed("error", newErrorBody(status, problem, "")) // the client may be the one that is gone
}

// newID makes a random id with a prefix.
func newID(prefix string) string { return prefix + rand.Text() }

// fingerprint names everything that the answer's bits depend on beside the request.
func fingerprint(i engine.ModelInfo) string {
	return fmt.Sprintf("%s-%.12s", i.NumericsID, i.Hash)
}

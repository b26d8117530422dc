package daemon

// The expert map: what every expert has served, and pulses while anything runs.
//
// One feed reads the engine's routing events while at least one connection follows it, adds them up per expert, and ten
// times a second sends what was chosen as one sparse frame. Frames are visual: a slow browser misses pulses, nothing
// else. Nobody waits for the feed: the engine drops events that it does not take in time.

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"covey/atlas"
	"covey/atlas/probes"
	"covey/engine"
	"covey/engine/route"
	"covey/store"
	"covey/web"
	"covey/web/wire"
)

// pulseEvery is the length of a window of pulses.
const pulseEvery = 100 * time.Millisecond

// maps is the expert map's part of a daemon. Safe for concurrent use.
type maps struct {
	server  *Server
	atlases *atlases

	mu        sync.Mutex
	followers map[*Conn]int // number of the last window sent
	feeding   bool
}

// mountMap adds the map's page, its data and its commands.
func (s *Server) mountMap(a *atlases) {
	m := &maps{server: s, atlases: a, followers: map[*Conn]int{}}
	s.page("GET /experts", m.servePage)
	s.page("GET /experts/usage.json", m.serveUsage)
	s.command(wire.Follow, m.follow)
	s.command(wire.Survey, m.survey)
	s.command(wire.Inspect, m.inspect)
	s.command(wire.Trace, m.trace)
	s.command(wire.Count, m.count)
	s.command(wire.Reside, m.reside)
}

// follow answers Follow.
func (m *maps) follow(_ context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	if _, err := m.server.Engine(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if cmd.Arg(0) != "1" {
		delete(m.followers, conn)
		return nil, nil
	}
	if _, ok := m.followers[conn]; !ok {
		m.followers[conn] = 0
		context.AfterFunc(conn.Context(), func() {
			m.mu.Lock()
			delete(m.followers, conn)
			m.mu.Unlock()
		})
	}
	if !m.feeding {
		m.feeding = m.server.Go(m.feed)
	}
	return nil, nil
}

// feed sends pulses until nobody follows any more.
func (m *maps) feed(ctx context.Context) {
	eng, err := m.server.Engine()
	if err != nil {
		m.mu.Lock()
		m.feeding = false
		m.mu.Unlock()
		return
	}
	events, cancel := eng.Subscribe()
	defer cancel()
	w := newWindow(eng.Model().Shape)
	var due <-chan time.Time // set while the window holds something: an idle daemon sleeps
	for {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil // the engine closes; the followers go with it
				continue
			}
			w.add(e)
			if due == nil {
				due = time.After(pulseEvery)
			}
		case <-due:
			due = nil
			if !m.send(w) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// send gives every follower the window; false once there is none.
func (m *maps) send(w *window) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.followers) == 0 {
		m.feeding = false
		return false
	}
	p := w.take()
	for conn, number := range m.followers {
		p.Number = number + 1
		m.followers[conn] = p.Number
		conn.Send(Frame{Class: Visual, Key: "pulses", Data: p.Append(nil)})
	}
	return true
}

// window adds up routing events until they are taken. Adding costs one increment a (row, layer, rank).
type window struct {
	shape     route.Shape
	rows      int
	counts    []int32 // [layers, experts]
	sequences map[uint64]bool
}

func newWindow(s route.Shape) *window {
	return &window{shape: s, counts: make([]int32, len(s.Layers)*s.Experts), sequences: map[uint64]bool{}}
}

func (w *window) add(e *route.Event) {
	w.rows += e.Rows()
	w.sequences[e.Sequence] = true
	slots := w.shape.Slots()
	for i, id := range e.IDs {
		w.counts[i%slots/w.shape.TopK*w.shape.Experts+int(id)]++
	}
}

// take returns the window as a frame, unnumbered, and starts the next.
func (w *window) take() wire.Pulses {
	p := wire.Pulses{Rows: w.rows, Sequences: len(w.sequences)}
	for cell, n := range w.counts {
		if n > 0 {
			p.Cells = append(p.Cells, wire.Pulse{Cell: cell, Count: int(n)})
		}
	}
	w.rows = 0
	clear(w.counts)
	clear(w.sequences)
	return p
}

// survey answers Survey.
func (m *maps) survey(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	eng, err := m.server.Engine()
	if err != nil {
		return nil, err
	}
	info := eng.Model()
	u, err := m.server.store.Usage(ctx, info.Hash, info.Shape.Layers, info.Shape.Experts)
	if err != nil {
		return nil, stored(err, "the history of the experts")
	}
	doc, err := m.atlas(ctx, info, cmd.Arg(0))
	if err != nil {
		return nil, err
	}
	conn.Send(Frame{Data: surveyFrame(info.Shape, u, doc, time.Now()).Append(nil)})
	return nil, nil
}

// atlas finds the atlas that the map shows: id, or "" for the newest of the model, nil when there is none or id is "-".
// An atlas of another geometry is refused.
func (m *maps) atlas(ctx context.Context, info engine.ModelInfo, id string) (*opened, error) {
	if id == "-" {
		return nil, nil
	}
	if id == "" {
		list, err := m.server.store.Atlases(ctx, info.Hash)
		if err != nil {
			return nil, stored(err, "the list of atlases")
		}
		if len(list) == 0 {
			return nil, nil
		}
		id = list[0].ID
	}
	doc, err := m.atlases.open(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, l := range doc.Shape.Layers {
		if !containsLayer(info.Shape.Layers, l) || doc.Shape.Experts > info.Shape.Experts {
			return nil, problem(KindUsage, "invalid", "choose an atlas of this model", nil, "the atlas %q is of a model with other layers or experts", doc.Name)
		}
	}
	return doc, nil
}

func containsLayer(layers []int, layer int) bool { return layerIndex(layers, layer) >= 0 }

func layerIndex(layers []int, layer int) int {
	for i, l := range layers {
		if l == layer {
			return i
		}
	}
	return -1
}

// surveyFrame lays history and atlas out by cell.
func surveyFrame(s route.Shape, u store.Usage, doc *opened, now time.Time) wire.Map {
	cells := len(s.Layers) * s.Experts
	f := wire.Map{
		Shape:      wire.Shape{Layers: s.Layers, Experts: s.Experts, TopK: s.TopK},
		Selections: make([]float32, cells), Ages: make([]float32, cells),
	}
	unknown := float32(math.NaN())
	for i := range cells {
		f.Selections[i] = float32(u.Selections[i])
		f.Ages[i] = unknown
		if u.LastUsed[i] > 0 {
			f.Ages[i] = float32(max(0, now.Sub(time.UnixMilli(u.LastUsed[i])).Seconds()))
		}
	}
	if doc == nil {
		return f
	}
	blank := func() []float32 {
		v := make([]float32, cells)
		for i := range v {
			v[i] = unknown
		}
		return v
	}
	f.Atlas, f.Name, f.Specificity, f.Q = doc.stored.ID, doc.stored.Name, blank(), blank()
	for _, topic := range doc.Topics {
		f.Topics = append(f.Topics, wire.MapTopic{Topic: topic, Lift: blank(), Low: blank(), High: blank()})
	}
	for i := range doc.Experts {
		e := &doc.Experts[i]
		row := layerIndex(s.Layers, e.Layer)
		if row < 0 || e.State == atlas.Insufficient {
			continue
		}
		at := row*s.Experts + e.ID
		if e.State != atlas.Unmeasured {
			f.Specificity[at] = float32(e.Specificity)
		}
		if len(e.Q) > 0 {
			f.Q[at] = float32(slices.Min(e.Q))
		}
		if len(e.Low) == 0 {
			continue // no interval: nothing that a topic's map could honestly show
		}
		for c := range f.Topics {
			f.Topics[c].Lift[at], f.Topics[c].Low[at], f.Topics[c].High[at] = float32(e.Lift(c)), float32(e.Low[c]), float32(e.High[c])
		}
	}
	return f
}

// inspect answers Inspect: the panel about one expert.
func (m *maps) inspect(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	layer, err1 := strconv.Atoi(cmd.Arg(0))
	id, err2 := strconv.Atoi(cmd.Arg(1))
	if err1 != nil || err2 != nil {
		return nil, invalid("layer and expert are numbers")
	}
	eng, err := m.server.Engine()
	if err != nil {
		return nil, err
	}
	info := eng.Model()
	row := layerIndex(info.Shape.Layers, layer)
	if row < 0 || id < 0 || id >= info.Shape.Experts {
		return nil, invalid("the model has no expert %d in layer %d", id, layer)
	}
	view, err := m.expert(ctx, info, row, id, cmd.Arg(2))
	if err != nil {
		return nil, err
	}
	view.OnDisk = !eng.Resident()[row*info.Shape.Experts+id]
	if view.Recent, err = m.recent(ctx, info, row, id); err != nil {
		return nil, err
	}
	html, err := fragment(ctx, web.MapPanel(view))
	if err != nil {
		return nil, err
	}
	conn.Send(Frame{Text: true, Data: wire.Patch{Op: wire.Inner, Target: "map-panel", HTML: html}.Append(nil)})
	return nil, nil
}

// maxTraced is how many bytes of a text the map reads.
const maxTraced = 4000

// trace answers Trace: the model reads the text once, in the background of answers, and says which experts that took.
func (m *maps) trace(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	eng, err := m.server.Engine()
	if err != nil {
		return nil, err
	}
	if len(cmd.Arg(0)) > maxTraced {
		return nil, invalid("a text for the map has at most %d bytes", maxTraced)
	}
	info := eng.Model()
	model := atlas.FromEngine(eng)
	prompt, err := model.Encode(probes.Probe{Kind: probes.Raw, Text: cmd.Arg(0)})
	if err != nil || prompt.To <= prompt.From {
		return nil, invalid("the text has no token to read")
	}
	if info.Context > 0 && len(prompt.Tokens) > info.Context {
		return nil, invalid("the text has %d tokens, the model's context %d", len(prompt.Tokens), info.Context)
	}
	f, err := model.Forward(ctx, prompt.Tokens, atlas.ForwardOptions{Routing: true})
	if err != nil {
		return nil, problem(KindInternal, "internal", "try it again", err, "the text could not be read")
	}
	w := newWindow(info.Shape)
	for _, e := range f.Events {
		w.add(e)
	}
	p := w.take()
	conn.Send(Frame{Data: wire.Traced{Tokens: p.Rows, Cells: p.Cells}.Append(nil)})
	return nil, nil
}

// routing reads what an answer's tokens chose. What another program wrote costs nothing but itself: it reads as nothing.
func (m *maps) routing(ctx context.Context, info engine.ModelInfo, answer string) ([]*route.Event, error) {
	blob, err := m.server.store.TurnRouting(ctx, answer)
	if err != nil {
		return nil, stored(err, "the routing of an answer")
	}
	shape, events, err := route.Decode(blob)
	if err != nil || !slices.Equal(shape.Layers, info.Shape.Layers) || shape.Experts != info.Shape.Experts || shape.TopK != info.Shape.TopK {
		return nil, nil
	}
	return events, nil
}

// recentAnswers is how many answers the panel shows an expert's selections in.
const recentAnswers = 40

// recent is an expert's selections in the latest answers, oldest first.
func (m *maps) recent(ctx context.Context, info engine.ModelInfo, row, id int) ([]web.RecentAnswer, error) {
	turns, err := m.server.store.TurnsWithRouting(ctx, info.Hash, "", time.Time{}, time.Now().Add(time.Hour))
	if err != nil {
		return nil, stored(err, "the latest answers")
	}
	var out []web.RecentAnswer
	k, slots := info.Shape.TopK, info.Shape.Slots()
	for _, t := range turns[max(0, len(turns)-recentAnswers):] {
		events, err := m.routing(ctx, info, t.Answer)
		if err != nil {
			return nil, err
		}
		r := web.RecentAnswer{Started: t.Started}
		for _, e := range events {
			r.Tokens += e.Rows()
			for at := row * k; at < len(e.IDs); at += slots {
				if slices.Contains(e.IDs[at:at+k], uint16(id)) {
					r.Selections++
				}
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// reside answers Reside: where the experts' weights are.
func (m *maps) reside(_ context.Context, conn *Conn, _ wire.Command) ([]string, error) {
	eng, err := m.server.Engine()
	if err != nil {
		return nil, err
	}
	s := eng.Stats()
	conn.Send(Frame{Class: Visual, Key: "tiers", Data: wire.Tiers{Hits: s.ExpertHits, Misses: s.ExpertMisses, InMemory: eng.Resident()}.Append(nil)})
	return nil, nil
}

// panelTopics is how many topics, pairs and texts the panel lists.
const (
	panelTopics = 5
	panelPairs  = 5
	panelTexts  = 2
)

// expert is what the panel says about expert id of MoE layer row.
func (m *maps) expert(ctx context.Context, info engine.ModelInfo, row, id int, atlasID string) (web.MapExpert, error) {
	layer := info.Shape.Layers[row]
	view := web.MapExpert{Layer: layer, ID: id, Experts: info.Shape.Experts, TopK: info.Shape.TopK}
	u, err := m.server.store.Usage(ctx, info.Hash, info.Shape.Layers, info.Shape.Experts)
	if err != nil {
		return view, stored(err, "the history of the experts")
	}
	cells := u.Selections[row*info.Shape.Experts : (row+1)*info.Shape.Experts]
	view.Selections = cells[id]
	for _, n := range cells {
		view.LayerSelections += n
		if n > view.Selections {
			view.Rank++
		}
	}
	if at := u.LastUsed[row*info.Shape.Experts+id]; at > 0 {
		view.LastUsed = time.UnixMilli(at)
	}
	doc, err := m.atlas(ctx, info, atlasID)
	if err != nil || doc == nil {
		return view, err
	}
	view.Atlas, view.AtlasName = doc.stored.ID, doc.stored.Name
	if e := doc.Expert(layer, id); e != nil {
		view.State = string(e.State)
		view.Specificity = e.Specificity
		view.Topics = expertTopics(doc.Atlas, e)
		view.Topics = view.Topics[:min(panelTopics, len(view.Topics))]
		view.Examples, view.Together = m.atlases.look(ctx, doc, layer, id)
		view.Examples, view.Together = view.Examples[:min(panelTexts, len(view.Examples))], view.Together[:min(panelPairs, len(view.Together))]
	}
	return view, nil
}

// servePage serves /experts: ?layer= chooses the layer of the table, ?atlas= the atlas, ?turn= an answer to step through.
func (m *maps) servePage(w http.ResponseWriter, r *http.Request) {
	s := m.server
	eng, err := s.Engine()
	if err != nil {
		s.refuseWithoutModel(w, r, AsError(err))
		return
	}
	info := eng.Model()
	shape := info.Shape
	if len(shape.Layers) == 0 {
		refuse(w, r, http.StatusNotFound, problem(KindUsage, "not_found", "open a Mixture-of-Experts model", nil, "%s has no routed experts", info.Name))
		return
	}
	u, err := s.store.Usage(r.Context(), info.Hash, shape.Layers, shape.Experts)
	if err != nil {
		refuse(w, r, http.StatusInternalServerError, AsError(stored(err, "the history of the experts")))
		return
	}
	query := r.URL.Query()
	doc, err := m.atlas(r.Context(), info, query.Get("atlas"))
	if err != nil {
		// A stale link to an atlas does not cost the map.
		s.log.Debug("expert map without its atlas", slog.Any("err", err))
		doc = nil
	}
	row := 0
	if n, err := strconv.Atoi(query.Get("layer")); err == nil {
		row = max(0, layerIndex(shape.Layers, n))
	}
	view := web.ExpertMap{
		Page: s.newPage(r, "experts", "Experts"), Layers: shape.Layers, Experts: shape.Experts, TopK: shape.TopK,
		Selections: u.Selections, Total: u.Total, Row: row, ShowTable: query.Has("layer"),
	}
	if id := query.Get("turn"); id != "" {
		view.Turn = m.turn(r.Context(), id)
	}
	if doc != nil {
		view.Atlas, view.AtlasName = doc.stored.ID, doc.stored.Name
	}
	view.Talks, view.Compared = m.talks(r.Context(), info)
	if list, err := s.store.Atlases(r.Context(), info.Hash); err == nil {
		for _, a := range list {
			view.Atlases = append(view.Atlases, atlasItem(a).Choice())
		}
	}
	for id := range shape.Experts {
		e := web.MapRow{Expert: id, Selections: u.Selections[row*shape.Experts+id]}
		if doc != nil {
			if x := doc.Expert(shape.Layers[row], id); x != nil {
				e.State, e.Specificity, e.Measured = string(x.State), x.Specificity, x.State != atlas.Unmeasured
				if topics := expertTopics(doc.Atlas, x); len(topics) > 0 && topics[0].Labelled {
					e.Top = &topics[0]
				}
			}
		}
		view.Rows = append(view.Rows, e)
	}
	s.render(w, r, http.StatusOK, web.MapPage(view))
}

// turn is the answer that the page steps through; nil when it is not there.
func (m *maps) turn(ctx context.Context, id string) *web.MapTurn {
	message, err := m.server.store.Message(ctx, id)
	if err != nil || message.Turn == nil {
		return nil
	}
	return &web.MapTurn{Message: id, Conversation: message.Conversation, Tokens: message.Turn.Generated}
}

// serveUsage serves the history of every expert as JSON, for scripts.
func (m *maps) serveUsage(w http.ResponseWriter, r *http.Request) {
	eng, err := m.server.Engine()
	if err != nil {
		m.server.refuseWithoutModel(w, r, AsError(err))
		return
	}
	info := eng.Model()
	u, err := m.server.store.Usage(r.Context(), info.Hash, info.Shape.Layers, info.Shape.Experts)
	if err != nil {
		refuse(w, r, http.StatusInternalServerError, AsError(stored(err, "the history of the experts")))
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"model": info.ID, "model_hash": info.Hash, "layers": u.Layers, "experts": u.Experts, "selections": u.Selections,
		"mass": u.Mass, "last_used_unix_ms": u.LastUsed, "total": u.Total,
	})
}

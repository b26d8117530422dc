package daemon

// Two conversations on the expert map: which can be compared, and what was chosen in their answers.

import (
	"context"
	"time"

	"covey/engine"
	"covey/store"
	"covey/web"
	"covey/web/wire"
)

// mapTalks is how many conversations the map offers for comparison.
const mapTalks = 100

// count answers Count: what was chosen in the answers of a conversation whose routing is stored.
func (m *maps) count(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	eng, err := m.server.Engine()
	if err != nil {
		return nil, err
	}
	info := eng.Model()
	if cmd.Arg(0) == "" {
		return nil, invalid("choose a conversation")
	}
	turns, err := m.server.store.TurnsWithRouting(ctx, info.Hash, cmd.Arg(0), time.Time{}, time.Now().Add(time.Hour))
	if err != nil {
		return nil, stored(err, "the answers of the conversation")
	}
	w, tally := newWindow(info.Shape), wire.Tally{Conversation: cmd.Arg(0)}
	for _, t := range turns {
		events, err := m.routing(ctx, info, t.Answer)
		if err != nil {
			return nil, err
		}
		if len(events) == 0 {
			continue
		}
		tally.Answers++
		if !ended(t) {
			tally.Stopped++
		}
		for _, e := range events {
			w.add(e)
		}
	}
	p := w.take()
	tally.Tokens, tally.Cells = p.Rows, p.Cells
	conn.Send(Frame{Data: tally.Append(nil)})
	return nil, nil
}

// ended says whether an answer came to an end by itself or by its limit: nobody stopped it, nothing broke.
func ended(t store.TurnRef) bool {
	return t.Finish == engine.FinishStop || t.Finish == engine.FinishLength
}

// talks lists the conversations that can be compared, the latest first, and the first two of which every answer has ended.
func (m *maps) talks(ctx context.Context, info engine.ModelInfo) (list []web.Choice, chosen [2]string) {
	conversations, err := m.server.store.Conversations(ctx, 0, mapTalks)
	if err != nil {
		return nil, chosen
	}
	turns, err := m.server.store.TurnsWithRouting(ctx, info.Hash, "", time.Time{}, time.Now().Add(time.Hour))
	if err != nil {
		return nil, chosen
	}
	whole := map[string]bool{} // by conversation with routing
	for _, t := range turns {
		before, known := whole[t.Conversation]
		whole[t.Conversation] = ended(t) && (before || !known)
	}
	found := 0
	for _, c := range conversations {
		complete, known := whole[c.ID]
		if !known {
			continue
		}
		list = append(list, web.Choice{ID: c.ID, Name: web.ItemName(c.Title)})
		if complete && found < len(chosen) {
			chosen[found] = c.ID
			found++
		}
	}
	return list, chosen
}

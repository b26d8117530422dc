package daemon

// Two atlases, or two topics of one, side by side: as a page and as files.

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"covey/atlas"
	"covey/web"
)

// comparedRows is how many experts the page lists.
const comparedRows = 60

// serveCompare serves ?a=&b=&topic=&topic_b=: where two atlases of one geometry, or two topics, differ; as a page, or every
// expert of both as .csv or .json.
func (a *atlases) serveCompare(w http.ResponseWriter, r *http.Request) {
	list, err := a.choices(r.Context())
	if err != nil {
		refuseError(w, r, err)
		return
	}
	query := r.URL.Query()
	view := web.AtlasComparison{Page: a.server.newPage(r, "atlas", "Compare atlases"), Atlases: list, A: query.Get("a"), B: query.Get("b"), Topic: query.Get("topic"), TopicB: query.Get("topic_b")}
	form := path.Ext(r.URL.Path)
	if form != "" && (view.A == "" || view.B == "") {
		refuse(w, r, http.StatusBadRequest, problem(KindUsage, "invalid", "name both in the address: ?a=ID&b=ID", nil, "a comparison is of two atlases"))
		return
	}
	if view.A != "" && view.B != "" {
		first, err := a.open(r.Context(), view.A)
		if err != nil {
			refuseError(w, r, err)
			return
		}
		second, err := a.open(r.Context(), view.B)
		if err != nil {
			refuseError(w, r, err)
			return
		}
		for _, side := range []struct {
			doc   *opened
			topic string
		}{{first, view.Topic}, {second, view.TopicB}} { // a page falls back to another topic and shows it; a file must not
			if form != "" && side.topic != "" && !slices.Contains(side.doc.Topics, side.topic) {
				refuse(w, r, http.StatusBadRequest, problem(KindUsage, "invalid", "name one of its topics: "+strings.Join(side.doc.Topics, ", "), nil, "the atlas %q has no topic %q", side.doc.stored.Name, clip(side.topic, 100)))
				return
			}
		}
		one, other := atlasItem(first.stored), atlasItem(second.stored)
		view.First, view.Second, view.Notes = &one, &other, comparisonNotes(first, second)
		compareAtlases(&view, first.Atlas, second.Atlas)
		if same, err := atlas.Compare(first.Atlas, second.Atlas); err == nil && view.A != view.B && same.Experts > 0 {
			view.Agreement = []web.Fact{
				{Label: "Topics in both", Value: strconv.Itoa(len(same.Topics))},
				{Label: "Affinities", Value: fmt.Sprintf("correlation %.3f over %d experts (Pearson)", same.Correlation, same.Experts)},
				{Label: "Same top topic", Value: percentOf(same.SameTop) + " of these experts"},
				{Label: "Labels", Value: fmt.Sprintf("%d in both, %d in the first alone, %d in the second alone", same.Both, len(same.OnlyFirst), len(same.OnlySecond))},
			}
		}
		if form != "" {
			if err := writeComparison(w, form, &view); err != nil {
				a.server.log.Debug("writing a comparison", slog.Any("err", err)) // the client is gone
			}
			return
		}
		view.Rows = view.Rows[:min(comparedRows, len(view.Rows))]
	} else if view.A == "" && view.B == "" && len(list) > 1 {
		view.A, view.B = list[0].ID, list[1].ID // to begin with
	}
	a.server.render(w, r, http.StatusOK, web.AtlasComparePage(view))
}

// comparisonNotes says what makes two atlases hard to compare.
func comparisonNotes(first, second *opened) []string {
	if first.stored.ID == second.stored.ID {
		return nil
	}
	p, q := first.Provenance, second.Provenance
	var out []string
	if first.ID == second.ID {
		out = append(out, "Both hold the same measurement: equal model, texts, numerics and seed.")
	}
	if p.ModelHash != q.ModelHash {
		out = append(out, "The atlases are of different models. Experts are compared by layer and number, which mean the same in both only where one model was made from the other.")
	}
	if p.ProbeSetHash != q.ProbeSetHash && p.ModelHash == q.ModelHash {
		out = append(out, "The texts differ: a lift is over the topics of its own set, so a difference may be one of texts.")
	}
	if p.NumericsID != q.NumericsID && p.ModelHash == q.ModelHash {
		out = append(out, "The numerics differ: rounding alone moves choices that are nearly even.")
	}
	return out
}

// drawnCells is how many experts a comparison draws as a picture.
const drawnCells = 4096

// compareAtlases fills in the experts whose lift differs most, by the gap between their intervals: of one topic in two
// atlases, or of two topics.
func compareAtlases(view *web.AtlasComparison, first, second *atlas.Atlas) {
	view.Topics, view.TopicsB = first.Topics, second.Topics
	if !slices.Contains(view.Topics, view.Topic) {
		view.Topic = view.Topics[0]
		for _, t := range first.Topics {
			if slices.Contains(second.Topics, t) {
				view.Topic = t
				break
			}
		}
	}
	if !slices.Contains(view.TopicsB, view.TopicB) {
		view.TopicB = view.TopicsB[0]
		if slices.Contains(view.TopicsB, view.Topic) {
			view.TopicB = view.Topic
		}
	}
	ca, cb := slices.Index(first.Topics, view.Topic), slices.Index(second.Topics, view.TopicB)
	if len(first.Shape.Layers)*first.Shape.Experts <= drawnCells {
		view.Grid = &web.ComparedGrid{Layers: first.Shape.Layers, Experts: first.Shape.Experts, Cells: make([]*web.ComparedExpert, len(first.Shape.Layers)*first.Shape.Experts)}
	}
	for i := range first.Experts {
		x := &first.Experts[i]
		y := second.Expert(x.Layer, x.ID)
		if y == nil || len(x.Low) == 0 || len(y.Low) == 0 {
			continue
		}
		row := web.ComparedExpert{Layer: x.Layer, ID: x.ID,
			A: web.Interval{Value: x.Lift(ca), Low: x.Low[ca], High: x.High[ca]}, B: web.Interval{Value: y.Lift(cb), Low: y.Low[cb], High: y.High[cb]}}
		row.Gap = max(row.B.Low-row.A.High, row.A.Low-row.B.High)
		if row.Gap > 0 {
			view.Apart++
		}
		view.Compared++
		view.Rows = append(view.Rows, row)
		if view.Grid != nil {
			view.Grid.Cells[layerIndex(first.Shape.Layers, x.Layer)*first.Shape.Experts+x.ID] = &row
		}
	}
	if view.Compared == 0 {
		view.Notes, view.Grid = append(view.Notes, "The two atlases have no expert in common that has intervals in both."), nil
	}
	slices.SortStableFunc(view.Rows, func(x, y web.ComparedExpert) int { return cmp.Compare(y.Gap, x.Gap) })
}

// writeComparison writes every expert of a comparison in the order of the page: ".csv" or ".json".
func writeComparison(w http.ResponseWriter, form string, view *web.AtlasComparison) error {
	if form == ".json" {
		type expert struct {
			Layer int        `json:"layer"`
			ID    int        `json:"id"`
			A     [3]float64 `json:"a"` // lift, low, high
			B     [3]float64 `json:"b"`
			Gap   float64    `json:"gap"` // between the intervals; negative = they overlap
		}
		list := make([]expert, len(view.Rows))
		for i, r := range view.Rows {
			list[i] = expert{r.Layer, r.ID, [3]float64{r.A.Value, r.A.Low, r.A.High}, [3]float64{r.B.Value, r.B.Low, r.B.High}, r.Gap}
		}
		attach(w, "application/json", "comparison.json")
		writeJSON(w, http.StatusOK, map[string]any{"a": view.A, "b": view.B, "topic": view.Topic, "topic_b": view.TopicB, "experts": list})
		return nil
	}
	attach(w, "text/csv; charset=utf-8", "comparison.csv")
	out := csv.NewWriter(w)
	rows := [][]string{{"layer", "expert", "atlas", "topic", "lift", "low", "high", "atlas_b", "topic_b", "lift_b", "low_b", "high_b", "gap"}}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	for _, r := range view.Rows {
		rows = append(rows, []string{strconv.Itoa(r.Layer), strconv.Itoa(r.ID), view.A, atlas.PlainCell(view.Topic), number(r.A.Value), number(r.A.Low), number(r.A.High),
			view.B, atlas.PlainCell(view.TopicB), number(r.B.Value), number(r.B.Low), number(r.B.High), number(r.Gap)})
	}
	return out.WriteAll(rows)
}

package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/a-h/templ"

	"covey/atlas"
	"covey/store"
	"covey/web"
)

const (
	atlasFileLimit = 256 << 20 // bytes of an imported file
	atlasPageRows  = 40        // experts of a page of the table
	rankedExperts  = 5         // experts of a topic's list
	shownExamples  = 5         // texts of an expert's page
)

// mountAtlas adds the atlas pages. They need no model: an atlas can be read anywhere.
func (s *Server) mountAtlas(a *atlases) {
	s.always("GET /atlas", a.serveList)
	s.always("GET /atlas/compare", a.serveCompare)
	s.always("GET /atlas/compare.csv", a.serveCompare)
	s.always("GET /atlas/compare.json", a.serveCompare)
	s.always("GET /atlas/{id}", a.serveAtlas)
	s.always("GET /atlas/{id}/expert/{layer}/{expert}", a.serveExpert)
	s.always("GET /atlas/{id}/expert/{layer}/{expert}/expert.json", a.serveExpertJSON)
	s.always("GET /atlas/{id}/export/{form}", a.serveExport)
	s.always("POST /atlas/{id}/rename", a.serveRename)
	s.always("POST /atlas/{id}/delete", a.serveDelete)
	s.route("POST /atlas/import", a.serveImport, atlasFileLimit)
}

// fragment renders a component.
func fragment(ctx context.Context, c templ.Component) (string, error) {
	var b strings.Builder
	if err := c.Render(ctx, &b); err != nil {
		return "", problem(KindInternal, "internal", "the log has the details", err, "rendering a part of the page")
	}
	return b.String(), nil
}

// refuseError answers with an *Error under the status its code asks for.
func refuseError(w http.ResponseWriter, r *http.Request, err error) {
	e := AsError(err)
	status := http.StatusInternalServerError
	switch e.Code {
	case "not_found":
		status = http.StatusNotFound
	case "invalid":
		status = http.StatusBadRequest
	case "busy":
		status = http.StatusConflict
	case "read_only":
		status = http.StatusInsufficientStorage
	case "loading", "load_failed":
		status = http.StatusServiceUnavailable
	}
	refuse(w, r, status, e)
}

// choices lists the stored atlases, newest first.
func (a *atlases) choices(ctx context.Context) ([]web.AtlasItem, error) {
	list, err := a.server.store.Atlases(ctx, "")
	if err != nil {
		return nil, stored(err, "the list of atlases")
	}
	out := make([]web.AtlasItem, len(list))
	for i, s := range list {
		out[i] = atlasItem(s)
	}
	return out, nil
}

func (a *atlases) serveList(w http.ResponseWriter, r *http.Request) {
	list, err := a.choices(r.Context())
	if err != nil {
		refuseError(w, r, err)
		return
	}
	a.server.render(w, r, http.StatusOK, web.AtlasListPage(a.server.newPage(r, "atlas", "Atlases"), list))
}

// serveAtlas serves one atlas: ?sort= a topic or "specificity", ?all=1 for experts without labels too, ?page=.
func (a *atlases) serveAtlas(w http.ResponseWriter, r *http.Request) {
	doc, err := a.open(r.Context(), r.PathValue("id"))
	if err != nil {
		refuseError(w, r, err)
		return
	}
	query := r.URL.Query()
	view := atlasView(doc)
	view.Page, view.Sort, view.All = a.server.newPage(r, "atlas", doc.stored.Name), query.Get("sort"), query.Get("all") == "1"
	if list, err := a.choices(r.Context()); err == nil {
		view.Others = slices.DeleteFunc(list, func(o web.AtlasItem) bool { return o.ID == doc.stored.ID })
	}
	view.CanRemove = len(doc.Labels) > 0 && a.jobs.texts(r.Context(), doc) != nil
	sortBy := slices.Index(doc.Topics, view.Sort)
	if sortBy < 0 {
		view.Sort = ""
	}
	rows := matrixRows(doc.Atlas, sortBy, view.All)
	view.Rows = len(rows)
	view.Pages = max(1, (len(rows)+atlasPageRows-1)/atlasPageRows)
	view.Number, _ = strconv.Atoi(query.Get("page"))
	view.Number = min(max(view.Number, 1), view.Pages)
	rows = rows[(view.Number-1)*atlasPageRows : min(len(rows), view.Number*atlasPageRows)]
	for _, e := range rows {
		view.Matrix = append(view.Matrix, matrixRow(doc.Atlas, e))
	}
	a.server.render(w, r, http.StatusOK, web.AtlasPage(view))
}

// labelled says which (layer, id) have a label.
func labelled(doc *atlas.Atlas) map[[2]int]bool {
	out := map[[2]int]bool{}
	for _, l := range doc.Labels {
		out[[2]int{l.Layer, l.ID}] = true
	}
	return out
}

// matrixRows chooses and orders the experts of the table: by lower bound of the lift in topic sortBy, or by specificity
// when that is negative. Imported atlases have no labels: they show every expert, by affinity.
func matrixRows(doc *atlas.Atlas, sortBy int, all bool) []*atlas.Expert {
	has := labelled(doc)
	var rows []*atlas.Expert
	for i := range doc.Experts {
		e := &doc.Experts[i]
		if all || has[[2]int{e.Layer, e.ID}] || doc.Kind == atlas.Imported {
			rows = append(rows, e)
		}
	}
	slices.SortStableFunc(rows, func(x, y *atlas.Expert) int {
		switch {
		case sortBy < 0:
			return cmp.Compare(y.Specificity, x.Specificity)
		case len(x.Low) > 0 && len(y.Low) > 0:
			return cmp.Compare(y.Low[sortBy], x.Low[sortBy])
		case len(x.Low) != len(y.Low):
			return cmp.Compare(len(y.Low), len(x.Low))
		}
		return cmp.Compare(y.Affinity(sortBy), x.Affinity(sortBy))
	})
	return rows
}

// matrixRow is one row of the topics-by-experts table.
func matrixRow(doc *atlas.Atlas, e *atlas.Expert) web.MatrixRow {
	row := web.MatrixRow{Layer: e.Layer, ID: e.ID, State: string(e.State), Specificity: e.Specificity, Cells: make([]*web.TopicEstimate, len(doc.Topics))}
	for _, t := range expertTopics(doc, e) {
		row.Cells[t.Index] = &t
	}
	if doc.Kind == atlas.Imported {
		for c := range doc.Topics {
			row.Affinity = append(row.Affinity, e.Affinity(c))
		}
	}
	return row
}

// topicLists ranks the labelled experts of each topic by the lower bound of their lift.
func topicLists(doc *atlas.Atlas) []web.TopicList {
	out := make([]web.TopicList, len(doc.Topics))
	for c, topic := range doc.Topics {
		out[c].Topic = topic
	}
	for _, l := range doc.Labels {
		t := &out[l.Topic]
		t.Labels++
		if l.Lexical {
			t.Lexical++
		}
		if l.Confirmed != nil && l.Confirmed.Held {
			t.Held++
		}
		t.Ranked = append(t.Ranked, web.Ranked{Layer: l.Layer, ID: l.ID, Lexical: l.Lexical, Interval: web.Interval{Value: l.Lift, Low: l.Low, High: l.High}})
	}
	for c := range out {
		slices.SortStableFunc(out[c].Ranked, func(x, y web.Ranked) int { return cmp.Compare(y.Interval.Low, x.Interval.Low) })
		out[c].Ranked = out[c].Ranked[:min(rankedExperts, len(out[c].Ranked))]
	}
	return out
}

// expertOf finds the atlas and the expert that an address names; false once it has refused.
func (a *atlases) expertOf(w http.ResponseWriter, r *http.Request) (*opened, *atlas.Expert, bool) {
	doc, err := a.open(r.Context(), r.PathValue("id"))
	if err != nil {
		refuseError(w, r, err)
		return nil, nil, false
	}
	layer, err1 := strconv.Atoi(r.PathValue("layer"))
	id, err2 := strconv.Atoi(r.PathValue("expert"))
	var e *atlas.Expert
	if err1 == nil && err2 == nil {
		e = doc.Expert(layer, id)
	}
	if e == nil {
		refuse(w, r, http.StatusNotFound, problem(KindUsage, "not_found", "open the atlas and choose one of its experts", nil, "the atlas %q holds no such expert", doc.stored.Name))
		return nil, nil, false
	}
	return doc, e, true
}

// serveExpertJSON serves one expert with its labels as the atlas's file has them, and what says of what they are.
func (a *atlases) serveExpertJSON(w http.ResponseWriter, r *http.Request) {
	doc, e, ok := a.expertOf(w, r)
	if !ok {
		return
	}
	labels := []atlas.Label{}
	for _, l := range doc.Labels {
		if l.Layer == e.Layer && l.ID == e.ID {
			labels = append(labels, l)
		}
	}
	attach(w, "application/json", fmt.Sprintf("%s.l%de%d.json", fileName(doc.stored.Name), e.Layer, e.ID))
	writeJSON(w, http.StatusOK, struct {
		Atlas      string           `json:"atlas"` // the document's id
		Name       string           `json:"name"`
		Provenance atlas.Provenance `json:"provenance"`
		Topics     []string         `json:"topics"`
		Expert     *atlas.Expert    `json:"expert"`
		Labels     []atlas.Label    `json:"labels"`
	}{doc.ID, doc.stored.Name, doc.Provenance, doc.Topics, e, labels})
}

// serveExpert serves the page of one expert.
func (a *atlases) serveExpert(w http.ResponseWriter, r *http.Request) {
	doc, e, ok := a.expertOf(w, r)
	if !ok {
		return
	}
	layer, id := e.Layer, e.ID
	view := web.AtlasExpert{
		Page:  a.server.newPage(r, "atlas", "Layer "+strconv.Itoa(layer)+", expert "+strconv.Itoa(id)),
		Atlas: doc.stored.ID, AtlasName: doc.stored.Name, Layer: layer, ID: id, State: string(e.State), Specificity: e.Specificity,
		Selections: e.Selections(), Prompts: e.Prompts, Open: doc.Provenance.Open, Topics: expertTopics(doc.Atlas, e),
		Imported: doc.Kind == atlas.Imported, MinLift: doc.Provenance.MinLift, Alpha: doc.Provenance.Alpha,
	}
	if view.Imported {
		for c, topic := range doc.Topics {
			view.Affinity = append(view.Affinity, web.Fact{Label: topic, Value: fmt.Sprintf("%.1f %%", 100*e.Affinity(c))})
		}
	}
	if at := slices.IndexFunc(doc.Experts, func(x atlas.Expert) bool { return x.Layer == layer && x.ID == id }); at >= 0 {
		if at > 0 {
			view.Previous = &web.Neighbour{Layer: doc.Experts[at-1].Layer, ID: doc.Experts[at-1].ID}
		}
		if at+1 < len(doc.Experts) {
			view.Next = &web.Neighbour{Layer: doc.Experts[at+1].Layer, ID: doc.Experts[at+1].ID}
		}
	}
	for _, x := range removalsOf(doc.Atlas) {
		if x.Experts == 0 && x.Layer == layer && x.ID == id {
			view.Removals = append(view.Removals, x)
		}
	}
	view.Examples, view.Together = a.look(r.Context(), doc, layer, id)
	a.server.render(w, r, http.StatusOK, web.AtlasExpertPage(view))
}

// look is what the batch's texts show of an expert, while the store still has their results.
func (a *atlases) look(ctx context.Context, doc *opened, layer, id int) (examples []web.Example, together []web.Together) {
	found, err := atlas.LookAt(ctx, a.server.store, doc.stored.Job, doc.Atlas, layer, id, shownExamples)
	if err != nil {
		if !errors.Is(err, store.ErrNotFound) {
			a.server.log.Warn("reading example texts", slog.String("atlas", doc.stored.ID), slog.Any("err", err))
		}
		return nil, nil
	}
	for _, e := range found.Examples {
		examples = append(examples, web.Example{Topic: e.Probe.Topic, Split: e.Probe.Split, Text: e.Probe.Text, Share: e.Share(),
			Selections: e.Selections, Tokens: len(e.Tokens), Runs: a.runs(doc, e)})
	}
	for _, t := range found.Together {
		together = append(together, web.Together{Layer: t.Expert.Layer, ID: t.Expert.ID, Part: t.Part, Base: t.Base, Tokens: t.Both, Texts: t.Texts})
	}
	return examples, together
}

// runs cuts a text where its tokens begin or cease to choose the expert; nil when the model whose tokens they are is not
// open. A character of several tokens goes with its last.
func (a *atlases) runs(doc *opened, e atlas.Example) []web.Run {
	eng, err := a.server.Engine()
	if err != nil || eng.Model().Hash != doc.Provenance.ModelHash {
		return nil
	}
	var out []web.Run
	stream := eng.Tokenizer().Stream(false)
	for i, token := range e.Tokens {
		text := stream.Push(token)
		if n := len(out); n > 0 && (out[n-1].Chosen == e.Chosen[i] || text == "") {
			out[n-1].Text += text
		} else {
			out = append(out, web.Run{Text: text, Chosen: e.Chosen[i]})
		}
	}
	return out
}

// serveExport serves a file: covey.json, colibri-v1.json, colibri-v2.json, experts.csv, labels.csv, report.html,
// or mask.json with ?coverage= and ?topic=.
func (a *atlases) serveExport(w http.ResponseWriter, r *http.Request) {
	doc, err := a.open(r.Context(), r.PathValue("id"))
	if err != nil {
		refuseError(w, r, err)
		return
	}
	forms := map[string]struct {
		mime, name string
		write      func(io.Writer) error
	}{
		"covey.json": {"application/json", ".covey.atlas.json", func(w io.Writer) error {
			document, err := a.server.store.AtlasDocument(r.Context(), doc.stored.ID)
			if err == nil {
				_, err = w.Write(document)
			}
			return err
		}},
		"colibri-v1.json": {"application/json", ".v1.json", doc.WriteColibriV1},
		"colibri-v2.json": {"application/json", ".v2.json", doc.WriteColibriV2},
		"experts.csv":     {"text/csv; charset=utf-8", ".csv", doc.WriteCSV},
		"labels.csv":      {"text/csv; charset=utf-8", ".labels.csv", doc.WriteLabelsCSV},
		"mask.json":       {"application/json", ".mask.json", func(w io.Writer) error { return writeMask(w, doc.Atlas, r.URL.Query()) }},
		"report.html": {"text/html; charset=utf-8", ".report.html", func(w io.Writer) error {
			return WriteReport(r.Context(), w, doc.Atlas)
		}},
	}
	form, ok := forms[r.PathValue("form")]
	if !ok {
		refuse(w, r, http.StatusNotFound, problem(KindUsage, "not_found", "use covey.json, colibri-v1.json, colibri-v2.json, experts.csv, labels.csv, mask.json or report.html", nil, "there is no such export"))
		return
	}
	var b strings.Builder
	if err := form.write(&b); err != nil {
		refuse(w, r, http.StatusBadRequest, problem(KindUsage, "invalid", "choose another form", err, "this atlas cannot be written in that form"))
		return
	}
	attach(w, form.mime, fileName(doc.stored.Name)+form.name)
	io.WriteString(w, b.String()) // the client is gone if this fails
}

// writeMask writes the experts to keep: ?coverage= of the selections (0.9 when not given), of the texts of ?topic= or of all.
func writeMask(w io.Writer, doc *atlas.Atlas, query url.Values) error {
	rule := atlas.MaskRule{Coverage: 0.9}
	if text := query.Get("coverage"); text != "" {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("coverage %q is no number", text)
		}
		rule.Coverage = v
	}
	for _, t := range query["topic"] {
		if t != "" {
			rule.Topics = append(rule.Topics, t)
		}
	}
	m, err := doc.Mask(rule)
	if err != nil {
		return err
	}
	document, err := m.File(doc).Encode()
	if err == nil {
		_, err = w.Write(document)
	}
	return err
}

// goodName cuts a name to what lists can show.
func goodName(name string) string {
	name = strings.Join(strings.Fields(name), " ")
	for len(name) > maxTitle {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name
}

func (a *atlases) serveRename(w http.ResponseWriter, r *http.Request) {
	name := goodName(r.PostFormValue("name"))
	if name == "" {
		refuse(w, r, http.StatusBadRequest, problem(KindUsage, "invalid", "", nil, "an atlas needs a name"))
		return
	}
	if err := a.server.store.RenameAtlas(r.Context(), r.PathValue("id"), name); err != nil {
		refuseError(w, r, stored(err, "this atlas"))
		return
	}
	http.Redirect(w, r, "/atlas/"+url.PathEscape(r.PathValue("id")), http.StatusSeeOther)
}

func (a *atlases) serveDelete(w http.ResponseWriter, r *http.Request) {
	if err := a.server.store.DeleteAtlas(r.Context(), r.PathValue("id")); err != nil {
		refuseError(w, r, stored(err, "this atlas"))
		return
	}
	http.Redirect(w, r, "/atlas", http.StatusSeeOther)
}

// serveImport takes a file as the body; ?name= is what an imported atlas is called. The answer is its address, for a
// client that follows it.
func (a *atlases) serveImport(w http.ResponseWriter, r *http.Request) {
	file, err := io.ReadAll(r.Body)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			refuse(w, r, http.StatusRequestEntityTooLarge, problem(KindUsage, "invalid", "export it without what is not needed", err, "the file is too large"))
			return
		}
		refuse(w, r, http.StatusBadRequest, problem(KindUsage, "invalid", "send it again", err, "the file did not arrive whole"))
		return
	}
	name := goodName(strings.TrimSuffix(r.URL.Query().Get("name"), ".json"))
	if name == "" {
		name = "imported"
	}
	doc, err := a.read(name, file)
	if err != nil {
		if usage, usageErr := atlas.ReadUsage(bytes.NewReader(file)); usageErr == nil {
			a.showUsage(w, r, name, usage)
			return
		}
		refuse(w, r, http.StatusBadRequest, problem(KindInput, "invalid", "import covey.atlas.json, an atlas of colibri (v1 or v2) or its .coli_usage", err, "the file %q is no atlas that can be read", clip(name, 100)))
		return
	}
	saved, err := a.save(r.Context(), doc, "")
	if err != nil {
		refuseError(w, r, stored(err, "the atlas"))
		return
	}
	a.server.log.Info("atlas imported", slog.String("atlas", saved.ID), slog.Int64("bytes", saved.Size))
	http.Redirect(w, r, "/atlas/"+saved.ID, http.StatusSeeOther)
}

// usageRows is how many experts of a usage history are shown.
const usageRows = 100

// showUsage shows a usage history of another program, the largest loads first, with the labels of the newest atlas that
// has all of its experts beside. It is not stored.
func (a *atlases) showUsage(w http.ResponseWriter, r *http.Request, name string, u *atlas.Usage) {
	view := web.Usage{Page: a.server.newPage(r, "atlas", "Usage history"), Name: name, Total: u.Total, Experts: len(u.Counts)}
	sums, named := map[int]int64{}, map[int]int{}
	for x, n := range u.Counts {
		sums[x.Layer] += n
		named[x.Layer]++
	}
	view.Layers = len(sums)
	doc := a.fitting(r.Context(), u)
	if doc != nil {
		view.Atlas, view.AtlasName = doc.stored.ID, doc.stored.Name
	}
	for x, n := range u.Counts {
		if sums[x.Layer] == 0 {
			continue
		}
		share := float64(n) / float64(sums[x.Layer])
		view.Rows = append(view.Rows, web.UsageRow{Layer: x.Layer, ID: x.ID, Count: n, Share: share, Load: share * float64(named[x.Layer])})
	}
	slices.SortFunc(view.Rows, func(x, y web.UsageRow) int {
		return cmp.Or(cmp.Compare(y.Load, x.Load), cmp.Compare(x.Layer, y.Layer), cmp.Compare(x.ID, y.ID))
	})
	if len(view.Rows) > usageRows {
		view.Rows, view.More = view.Rows[:usageRows], len(view.Rows)-usageRows
	}
	if doc != nil {
		for i := range view.Rows {
			row := &view.Rows[i]
			if topics := expertTopics(doc.Atlas, doc.Expert(row.Layer, row.ID)); len(topics) > 0 && topics[0].Labelled {
				row.Top = &topics[0]
			}
		}
	}
	a.server.render(w, r, http.StatusOK, web.UsagePage(view))
}

// fitting is the newest atlas that holds every expert of a usage history; nil = none.
func (a *atlases) fitting(ctx context.Context, u *atlas.Usage) *opened {
	list, err := a.server.store.Atlases(ctx, "")
	if err != nil {
		return nil
	}
	for _, item := range list[:min(keptAtlases, len(list))] {
		doc, err := a.open(ctx, item.ID)
		if err != nil {
			continue
		}
		fits := true
		for x := range u.Counts {
			fits = fits && doc.Expert(x.Layer, x.ID) != nil
		}
		if fits {
			return doc
		}
	}
	return nil
}

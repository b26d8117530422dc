package atlas

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// PlainCell is a text cell that a spreadsheet shows as it stands: programs run a cell that begins with one of = + - @ (or a
// tab or carriage return before it) as a formula, and the names in an atlas are whoever's wrote it. An apostrophe before
// it says "text".
func PlainCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return "'" + s
	}
	return s
}

// csvColumns are the columns of WriteCSV: one row an expert and topic.
var csvColumns = []string{
	"layer", "expert", "state", "topic", "selections", "share", "mass", "affinity", "lift", "lift_low", "lift_high", "p", "q", "support", "label",
}

// WriteCSV writes one row for every expert and topic. Cells without a value are empty. The last column is "label" for a
// labelled pair, "lexical" for one that the token-identity control explains, else empty.
func (a *Atlas) WriteCSV(w io.Writer) error {
	type pair struct{ layer, id, topic int }
	labels := map[pair]string{}
	for _, l := range a.Labels {
		labels[pair{l.Layer, l.ID, l.Topic}] = "label"
		if l.Lexical {
			labels[pair{l.Layer, l.ID, l.Topic}] = "lexical"
		}
	}
	out := csv.NewWriter(w)
	if err := out.Write(csvColumns); err != nil {
		return fmt.Errorf("atlas: writing CSV: %w", err)
	}
	cell := func(v []float64, c int) string {
		if len(v) == 0 {
			return ""
		}
		return strconv.FormatFloat(v[c], 'g', -1, 64)
	}
	for i := range a.Experts {
		e := &a.Experts[i]
		for c, topic := range a.Topics {
			selections := ""
			if len(e.Counts) > 0 {
				selections = strconv.FormatInt(e.Counts[c], 10)
			}
			err := out.Write([]string{
				strconv.Itoa(e.Layer), strconv.Itoa(e.ID), string(e.State), PlainCell(topic), selections, cell(e.Share, c), cell(e.Mass, c),
				strconv.FormatFloat(round(e.Affinity(c)), 'g', -1, 64), strconv.FormatFloat(round(e.Lift(c)), 'g', -1, 64),
				cell(e.Low, c), cell(e.High, c), cell(e.P, c), cell(e.Q, c), cell(e.Support, c), labels[pair{e.Layer, e.ID, c}],
			})
			if err != nil {
				return fmt.Errorf("atlas: writing CSV: %w", err)
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("atlas: writing CSV: %w", err)
	}
	return nil
}

// labelColumns are the columns of WriteLabelsCSV: one row a label.
var labelColumns = []string{
	"layer", "expert", "topic", "lift", "lift_low", "lift_high", "p", "q", "support", "lexical", "lift_same_tokens", "p_same_tokens",
	"lift_words_shuffled", "lift_crossed", "sealed_lift", "sealed_low", "sealed_high", "removal", "removal_controls", "removal_net", "removal_low", "removal_high", "matters",
}

// WriteLabelsCSV writes every label with what the controls, the sealed texts and removal say about it. What was not
// computed is empty.
func (a *Atlas) WriteLabelsCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	if err := out.Write(labelColumns); err != nil {
		return fmt.Errorf("atlas: writing CSV: %w", err)
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	known := func(v float64) string { // 0 = not computed
		if v == 0 {
			return ""
		}
		return number(v)
	}
	for _, l := range a.Labels {
		row := []string{
			strconv.Itoa(l.Layer), strconv.Itoa(l.ID), PlainCell(a.Topics[l.Topic]), number(l.Lift), number(l.Low), number(l.High), number(l.P), number(l.Q),
			number(l.Support), strconv.FormatBool(l.Lexical), known(l.Within), known(l.WithinP), known(l.Shuffled), known(l.Crossed), "", "", "", "", "", "", "", "", "",
		}
		if c := l.Confirmed; c != nil {
			copy(row[14:], []string{number(c.Lift), number(c.Low), number(c.High)})
		}
		if e := l.Causal; e != nil {
			copy(row[17:], []string{number(e.Change), number(e.Control), number(e.Net), number(e.Low), number(e.High), strconv.FormatBool(e.Matters)})
		}
		if err := out.Write(row); err != nil {
			return fmt.Errorf("atlas: writing CSV: %w", err)
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("atlas: writing CSV: %w", err)
	}
	return nil
}

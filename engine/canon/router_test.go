package canon

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
)

// naiveRoute is rule 8 with plain sorting.
func naiveRoute(z []float32, s RouterSpec, banned map[int]bool) (ids []int32, weights []float32) {
	n := s.Experts
	score := make([]float32, n)
	switch s.Score {
	case ScoreSoftmax:
		highest := z[0]
		for _, v := range z {
			highest = max(highest, v)
		}
		for i, v := range z {
			score[i] = v - highest
		}
		RuleElementary(Exp, score, score)
		total := RuleSum(score)
		for i := range score {
			score[i] /= total
		}
	case ScoreTopSoftmax, ScoreSparseMixer:
		copy(score, z)
	case ScoreSigmoid:
		RuleElementary(Sigmoid, score, z)
	case ScoreSqrtSoftplus:
		RuleElementary(Softplus, score, z)
		for i, v := range score {
			score[i] = float32(math.Sqrt(float64(v)))
		}
	}
	choice := append([]float32(nil), score...)
	for i, b := range s.Bias {
		choice[i] += b
	}
	byChoice := func(ids []int) []int {
		sort.SliceStable(ids, func(a, b int) bool { return choice[ids[a]] > choice[ids[b]] })
		return ids
	}
	var left []int
	groups := max(s.Groups, 1)
	if s.TopGroups == 0 {
		s.TopGroups = groups
	}
	members, best := make([][]int, groups), make([]float32, groups)
	var order []int
	for g := range groups {
		for i := g * n / groups; i < (g+1)*n/groups; i++ {
			if !banned[i] {
				members[g] = append(members[g], i)
			}
		}
		byChoice(members[g])
		if len(members[g]) > 0 {
			order = append(order, g)
			best[g] = choice[members[g][0]]
			if !s.GroupMax && len(members[g]) > 1 {
				best[g] += choice[members[g][1]]
			}
		}
	}
	sort.SliceStable(order, func(a, b int) bool { return best[order[a]] > best[order[b]] })
	for _, g := range order[:min(s.TopGroups, len(order))] {
		left = append(left, members[g]...)
	}
	sort.Ints(left)
	var sum float32
	for _, i := range byChoice(left)[:s.TopK] {
		ids, weights = append(ids, int32(i)), append(weights, score[i])
	}
	if s.Score == ScoreSparseMixer {
		out := map[int]bool{}
		maps.Copy(out, banned)
		for rank, id := range ids {
			m, share := z[id], make([]float32, n)
			for i, v := range z {
				far := (m-v)/max(float32(math.Abs(float64(v))), m) > 2*s.Jitter
				if !out[i] && !far {
					e := []float32{v - m}
					RuleElementary(Exp, e, e)
					share[i] = e[0]
				}
			}
			weights[rank] = 1 / RuleSum(share)
			out[int(id)] = true
		}
	}
	if s.Score == ScoreTopSoftmax {
		first := weights[0]
		for i := range weights {
			weights[i] -= first
		}
		RuleElementary(Exp, weights, weights)
		s.Normalise = true
	}
	for _, w := range weights {
		sum += w
	}
	if s.Scale == 0 {
		s.Scale = 1
	}
	for i := range weights {
		if s.Normalise {
			weights[i] /= max(sum, s.MinSum) + s.Eps
		}
		weights[i] *= s.Scale
	}
	return ids, weights
}

func TestRoutersChooseAsTheRuleSays(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 15))
	const experts, rows = 16, 50
	bias := normals(r, experts, 0.5)
	specs := []RouterSpec{
		{Score: ScoreSoftmax, TopK: 3, Normalise: true},
		{Score: ScoreSoftmax, TopK: 3, Scale: 16},
		{Score: ScoreTopSoftmax, TopK: 4},
		{Score: ScoreSigmoid, TopK: 4, Bias: bias, Normalise: true, Eps: 1e-20, Scale: 2.5},
		{Score: ScoreSigmoid, TopK: 4, Bias: bias, Groups: 4, TopGroups: 2, Normalise: true, Eps: 1e-20, Scale: 2.5},
		{Score: ScoreSoftmax, TopK: 2, Groups: 8, TopGroups: 3, GroupMax: true},
		{Score: ScoreSoftmax, TopK: 6, Bias: bias, Normalise: true, MinSum: 0.5},
		{Score: ScoreSqrtSoftplus, TopK: 6, Bias: bias, Normalise: true, Eps: 1e-20, Scale: 1.5},
		{Score: ScoreSigmoid, TopK: 16},
		{Score: ScoreSparseMixer, TopK: 2, Jitter: 0.01},
		{Score: ScoreSparseMixer, TopK: 2, Jitter: 0.2},
	}
	z := make([][]float32, rows)
	for i := range z {
		z[i] = normals(r, experts, 2)
		if i%3 == 0 { // ties, the lower id wins
			for j := range z[i] {
				z[i][j] = float32(math.Round(float64(z[i][j])))
			}
		}
		if i == 4 {
			z[i] = make([]float32, experts)
			z[i][3] = math.Float32frombits(1 << 31) // -0 equals +0
		}
	}
	families(t, func(t *testing.T, pool *Pool) {
		a := newArena(t)
		p := NewProgram(pool, a, Limits{Rows: rows, Sequences: 2})
		logits := p.Buffer(experts)
		p.Embed(logits, table(a, z))
		var choices []*Choice
		for i := range specs {
			specs[i].Experts = experts
			choices = append(choices, p.Router(logits, specs[i]))
		}
		if err := p.Build(); err != nil {
			t.Fatal(err)
		}
		ban := p.NewBan()
		banned := map[int]bool{2: true, 7: true, 8: true}
		for i := range specs {
			for id := range banned {
				if specs[i].TopK+len(banned) <= experts {
					if err := ban.Add(i, id); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		s := rowsStep(rows)
		s.Pages = [][]int32{nil, nil}
		s.Banned = []*Ban{nil, ban}
		for i := range s.Sequence {
			s.Sequence[i] = int32(i % 2)
		}
		if err := p.Run(s); err != nil {
			t.Fatal(err)
		}
		for row := range rows {
			for i, spec := range specs {
				out := banned
				if row%2 == 0 || spec.TopK == experts {
					out = nil
				}
				ids, weights := naiveRoute(z[row], spec, out)
				if fmt.Sprint(ids) != fmt.Sprint(choices[i].IDs(row)) {
					t.Fatalf("router %d row %d chose %v, the rule chooses %v from %v", i, row, choices[i].IDs(row), ids, z[row])
				}
				sameRow(t, fmt.Sprintf("weights of router %d row %d", i, row), choices[i].Weights(row), weights)
			}
		}
	})
}

func TestTooManyBansAreRefused(t *testing.T) {
	a := newArena(t)
	pool := must(NewPool(1, Portable))
	defer pool.Close()
	p := NewProgram(pool, a, Limits{Rows: 1, Sequences: 1})
	p.Label("layer 1 router")
	p.Router(p.Buffer(4), RouterSpec{Experts: 4, TopK: 2, Groups: 2, TopGroups: 1})
	if err := p.Build(); err != nil {
		t.Fatal(err)
	}
	b := p.NewBan()
	for _, id := range []int{0, 2, 0} {
		if err := b.Add(0, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add(0, 3); !errors.Is(err, ErrBanned) {
		t.Errorf("third ban of four with top 2: %v", err)
	}
	if err := b.Add(1, 0); err == nil || errors.Is(err, ErrBanned) {
		t.Errorf("ban in a router that does not exist: %v", err)
	}
	// Two are left, but in two groups of which one is kept.
	s := rowsStep(1)
	s.Banned = []*Ban{b}
	if err := p.Run(s); !errors.Is(err, ErrBanned) {
		t.Errorf("run with one expert left in the kept group: %v", err)
	}
	if err := b.Check(0); !errors.Is(err, ErrBanned) || !strings.Contains(err.Error(), "as few as 1 experts for its choice of 2") {
		t.Errorf("check with one expert left in each group: %v", err)
	}
	// A group that is gone wholly is passed over.
	whole := p.NewBan()
	for _, id := range []int{2, 3} {
		if err := whole.Add(0, id); err != nil {
			t.Fatal(err)
		}
	}
	s.Banned[0] = whole
	if err := errors.Join(whole.Check(0), p.NewBan().Check(0), p.Run(s)); err != nil {
		t.Errorf("a whole group banned: %v", err)
	}
}

package stats

// This file names the topic of held-out rows from labelled ones: nearest centroid and multinomial logistic regression.
// Both see the square roots of the features (the Hellinger map, which keeps a few large shares from deciding alone),
// centred on the training mean. The logistic regression is fitted in its dual form: with more features than rows its
// solution is a combination of the rows, so each step costs rows^2, not rows x features.

import (
	"errors"
	"fmt"
	"math"
)

// ErrAlike says that there is nothing to name topics from.
var ErrAlike = errors.New("the training rows do not differ")

// Naming is the topic named for each held-out row.
type Naming struct {
	Centroid []int // by cosine to the topics' mean vectors
	Logistic []int
}

// logisticSteps and logisticRidge fix the fit: the rows are scaled to unit mean square norm, so one ridge serves all
// feature counts; with these steps the loss of the built-in set's size is within a thousandth of its minimum.
const (
	logisticSteps = 120
	logisticRidge = 1e-3
)

// Decode fits on train [rows, features] of known topic and names the rows of test. ErrAlike: all rows of train are equal.
func Decode(train Matrix, topic []int, topics int, test Matrix) (Naming, error) {
	if train.Cols != test.Cols || train.Rows != len(topic) || train.Rows == 0 {
		return Naming{}, errors.New("stats: decoding: training and test do not fit together")
	}
	a, b := roots(train), roots(test)
	mean := make([]float64, a.Cols)
	for r := range a.Rows {
		for i, v := range a.Row(r) {
			mean[i] += v / float64(a.Rows)
		}
	}
	square := 0.0
	for _, m := range []Matrix{a, b} {
		for r := range m.Rows {
			for i := range mean {
				m.Row(r)[i] -= mean[i]
			}
		}
	}
	for _, v := range a.Data {
		square += v * v
	}
	if square == 0 {
		return Naming{}, fmt.Errorf("stats: decoding: %w", ErrAlike)
	}
	norm := 1 / math.Sqrt(square/float64(a.Rows))
	for _, m := range []Matrix{a, b} {
		for i := range m.Data {
			m.Data[i] *= norm
		}
	}
	return Naming{Centroid: nearest(a, topic, topics, b), Logistic: logistic(a, topic, topics, b)}, nil
}

// roots is the signed square root of every value.
func roots(m Matrix) Matrix {
	out := NewMatrix(m.Rows, m.Cols)
	for i, v := range m.Data {
		out.Data[i] = math.Copysign(math.Sqrt(math.Abs(v)), v)
	}
	return out
}

func nearest(a Matrix, topic []int, topics int, b Matrix) []int {
	centroids := NewMatrix(topics, a.Cols)
	n := make([]float64, topics)
	for r, c := range topic {
		n[c]++
		for i, v := range a.Row(r) {
			centroids.Row(c)[i] += v
		}
	}
	lengths := make([]float64, topics)
	for c := range topics {
		if n[c] == 0 {
			continue
		}
		for i := range centroids.Row(c) {
			centroids.Row(c)[i] /= n[c]
		}
		lengths[c] = math.Sqrt(dot(centroids.Row(c), centroids.Row(c)))
	}
	out := make([]int, b.Rows)
	for r := range b.Rows {
		best := math.Inf(-1)
		for c := range topics {
			if lengths[c] == 0 {
				continue
			}
			if v := dot(b.Row(r), centroids.Row(c)) / lengths[c]; v > best {
				best, out[r] = v, c
			}
		}
	}
	return out
}

// logistic minimises mean cross-entropy + ridge/2 |W|^2 with W = A X by accelerated gradient descent (Nesterov 1983) and
// names the rows of b. A is [topics, rows], K = X X' [rows, rows].
func logistic(a Matrix, topic []int, topics int, b Matrix) []int {
	n := a.Rows
	k := gram(a, a)
	// The curvature of the loss in W is at most half of K's largest eigenvalue over n.
	step := 1 / (largest(k)/(2*float64(n)) + logisticRidge)
	weights, previous, look := NewMatrix(topics, n), NewMatrix(topics, n), NewMatrix(topics, n)
	scores := NewMatrix(n, topics)
	for it := range logisticSteps {
		momentum := float64(it) / float64(it+3)
		for i := range look.Data {
			look.Data[i] = weights.Data[i] + momentum*(weights.Data[i]-previous.Data[i])
		}
		products(k, look, scores)
		weights, previous = previous, weights
		for r := range n {
			p := scores.Row(r)
			softmax(p)
			p[topic[r]]--
			for c, g := range p {
				v := look.Data[c*n+r]
				weights.Data[c*n+r] = v - step*(g/float64(n)+logisticRidge*v)
			}
		}
	}
	scores = NewMatrix(b.Rows, topics)
	products(gram(b, a), weights, scores)
	out := make([]int, b.Rows)
	for r := range out {
		for c, v := range scores.Row(r) {
			if v > scores.Row(r)[out[r]] {
				out[r] = c
			}
		}
	}
	return out
}

// gram is a b' [a.Rows, b.Rows].
func gram(a, b Matrix) Matrix {
	out := NewMatrix(a.Rows, b.Rows)
	products(a, b, out)
	return out
}

// products sets out to a b'.
func products(a, b, out Matrix) {
	inBlocks(a.Rows, 0, func(_, r int) {
		to, row := out.Row(r), a.Row(r)
		for c := range b.Rows {
			to[c] = dot(row, b.Row(c))
		}
	})
}

// largest is an upper estimate of the largest eigenvalue of the symmetric matrix k (power iteration, then a tenth more).
func largest(k Matrix) float64 {
	v, w := NewMatrix(1, k.Rows), NewMatrix(k.Rows, 1)
	for i := range v.Data {
		v.Data[i] = 1 + float64(i%7) // not orthogonal to the first eigenvector of centred rows, as a constant would be
	}
	value := 0.0
	for range 30 {
		length := math.Sqrt(dot(v.Data, v.Data))
		if length == 0 {
			break
		}
		for i := range v.Data {
			v.Data[i] /= length
		}
		products(k, v, w)
		value = math.Sqrt(dot(w.Data, w.Data))
		v.Data, w.Data = w.Data, v.Data
	}
	return 1.1*value + 1e-12
}

func softmax(v []float64) {
	top, sum := math.Inf(-1), 0.0
	for _, x := range v {
		top = max(top, x)
	}
	for i, x := range v {
		v[i] = math.Exp(x - top)
		sum += v[i]
	}
	for i := range v {
		v[i] /= sum
	}
}

func dot(a, b []float64) float64 {
	var s0, s1, s2, s3 float64
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + s2 + s3
}

package stats

// This file is the product of draws and observations, the hot loop of every permutation and bootstrap.
//
// A draw gives each topic a list of units, so the product of the weight matrix [draws*topics, units] and the
// observations [units, cols] is a sum over a list, not a dense product: each unit counts in one topic. For eight columns
// at a time the sums stay in registers. Values are fixed point, and sum and sum of squares of a value share one 64-bit
// word (value in the high part, square in the low), so one load and one add serve both, and the result is exact: it does
// not depend on order, goroutines or machine.
//
// Work per (draw, unit, 8 columns): one 64-byte load (from the second-level cache: 560 units x 64 B = 36 KB) and eight
// integer adds. 20,000 columns x 560 units x 2,000 draws = 2.2e10 adds.

import (
	"math"
	"math/bits"
)

// width is the number of columns worked on together.
const width = 8

// scale says how fixed point maps back to values.
type scale struct {
	unit   [width]float64 // value of one step of the fixed point
	offset [width]float64 // added to every row before, so that values are not negative
}

// block holds eight columns of unit sums in fixed point.
type block struct {
	units  *units
	packed *[maxUnits][width]uint64 // [units] value<<shift | value*value; only the units' pages are ever touched
	sized  *[maxUnits][width]uint64 // [units] size*value; nil when every unit is one row
	shift  uint
	limit  float64 // largest fixed-point value
	scale  scale
	values []float64 // [units, width] scratch
}

// newBlock makes the scratch for one goroutine. With lists of at most n units, values of v bits need v + log2 n bits for
// their sum and 2v + log2 n for that of their squares; the widest v that fits 64 bits is used (17 bits at 40 units).
func newBlock(u *units) *block {
	longest := 0
	for c := range u.topics {
		longest = max(longest, u.first[c+1]-u.first[c])
	}
	spare := bits.Len(uint(longest))
	v := (64 - 2*spare) / 3
	b := &block{units: u, shift: uint(2*v + spare), limit: float64(uint64(1)<<v - 1)}
	b.packed = new([maxUnits][width]uint64)
	b.values = make([]float64, len(u.rows)*width)
	if !u.single {
		b.sized = new([maxUnits][width]uint64)
	}
	return b
}

// load fills the block with columns from, from+1, ... of x (fewer than eight at the right edge: the rest is 0).
func (b *block) load(x Matrix, from int) (cols int) {
	cols = min(width, x.Cols-from)
	clear(b.values)
	for i, rows := range b.units.rows {
		to := b.values[i*width:][:width]
		for _, r := range rows {
			for j, v := range x.Data[r*x.Cols+from:][:cols] {
				to[j] += v
			}
		}
	}
	for j := range width {
		low := 0.0 // per row
		for i, size := range b.units.size {
			low = min(low, b.values[i*width+j]/size)
		}
		high := 0.0
		for i, size := range b.units.size {
			b.values[i*width+j] -= low * size
			high = max(high, b.values[i*width+j])
		}
		b.scale.offset[j] = low
		b.scale.unit[j] = high / b.limit
	}
	for i, size := range b.units.size {
		for j := range width {
			q := uint64(0)
			if s := b.scale.unit[j]; s > 0 {
				q = uint64(math.Min(math.RoundToEven(b.values[i*width+j]/s), b.limit))
			}
			b.packed[i][j] = q<<b.shift | q*q
			if b.sized != nil {
				b.sized[i][j] = uint64(size) * q
			}
		}
	}
	return cols
}

// sums adds the rows of list into s. A 16-bit unit is always inside the array, so the loop checks no bounds.
func sums(rows *[maxUnits][width]uint64, list draw, s *[width]uint64) {
	var a0, a1, a2, a3, a4, a5, a6, a7 uint64
	for _, unit := range list {
		r := &rows[unit]
		a0 += r[0]
		a1 += r[1]
		a2 += r[2]
		a3 += r[3]
		a4 += r[4]
		a5 += r[5]
		a6 += r[6]
		a7 += r[7]
	}
	*s = [width]uint64{a0, a1, a2, a3, a4, a5, a6, a7}
}

// moments holds mean and squared standard error of the mean of one topic, for eight columns.
type moments struct{ mean, variance [width]float64 }

// measure fills m [topics] for one draw. The mean of a topic is over rows: sum S / sum n; its variance is that of a
// ratio of unit sums, G/(G-1) * sum (S_g - n_g mean)^2 / N^2 over its G units, which is the usual s^2/n when every unit is
// one row.
func (b *block) measure(list draw, m []moments) {
	mask := uint64(1)<<b.shift - 1
	var total, sized [width]uint64
	for c := range m {
		part := list[b.units.first[c]:b.units.first[c+1]]
		sums(b.packed, part, &total)
		g := float64(len(part))
		n, squares := g, g
		if b.sized != nil {
			sums(b.sized, part, &sized)
			n, squares = 0, 0
			for _, unit := range part {
				size := b.units.size[unit]
				n += size
				squares += size * size
			}
		}
		inverse, factor := 1/n, g/((g-1)*n*n)
		to := &m[c]
		for j := range width {
			sum := float64(int64(total[j] >> (b.shift & 63)))
			cross := sum
			if b.sized != nil {
				cross = float64(int64(sized[j]))
			}
			mean := sum * inverse
			variance := factor * (float64(int64(total[j]&mask)) - mean*(2*cross-mean*squares))
			unit := b.scale.unit[j]
			to.mean[j] = mean*unit + b.scale.offset[j]
			to.variance[j] = max(0, variance) * unit * unit
		}
	}
}

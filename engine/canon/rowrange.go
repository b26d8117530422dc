package canon

import (
	"encoding/binary"
	"fmt"
	"math"
)

// RowRange is the source of the rows [from, from+rows). A range that cuts a block of scales is an error.
func (s Source) RowRange(from, rows int) (Source, error) {
	fail := func(format string, args ...any) (Source, error) {
		return Source{}, fmt.Errorf("canon: rows %d to %d of %s: %s", from, from+rows, s.Name, fmt.Sprintf(format, args...))
	}
	if from < 0 || rows <= 0 || from+rows > s.Rows {
		return fail("there are %d", s.Rows)
	}
	height := max(s.GroupRows, 1)
	if height < s.Rows && (from%height != 0 || rows%height != 0 && from+rows != s.Rows) {
		return fail("blocks of scales are %d rows high", height)
	}
	part := s
	part.Rows, part.Name = rows, fmt.Sprintf("%s[%d:%d]", s.Name, from, from+rows)
	width := len(s.Codes) / s.Rows
	part.Codes = s.Codes[from*width : (from+rows)*width]
	lines := (s.Rows + height - 1) / height
	if height < s.Rows {
		cut := func(all []byte) []byte {
			n := len(all) / lines
			return all[from/height*n : (from+rows+height-1)/height*n]
		}
		part.Scales, part.Zeros, part.Minima = cut(s.Scales), cut(s.Zeros), cut(s.Minima)
		if s.Zeros == nil {
			part.Zeros = nil
		}
		if s.Minima == nil {
			part.Minima = nil
		}
	} else {
		part.GroupRows = rows
	}
	return part, nil
}

// PackFloats packs values [rows, cols] as an F32 matrix.
func (a *Arena) PackFloats(name string, values []float32, rows, cols int) (*Matrix, error) {
	codes := make([]byte, 0, 4*len(values))
	for _, x := range values {
		codes = binary.LittleEndian.AppendUint32(codes, math.Float32bits(x))
	}
	return a.Pack(Source{Name: name, Form: F32, Rows: rows, Cols: cols, Codes: codes})
}

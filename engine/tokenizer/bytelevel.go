package tokenizer

// Byte-level vocabularies spell each byte as one printable character: printable Latin-1 bytes as themselves, the other
// 68 as U+0100 and on, in order. A space becomes "Ġ" and a line feed "Ċ".

import "strings"

// byteRunes is the character of each byte, runeBytes the byte of each character below U+0144, -1 where none.
var byteRunes, runeBytes = byteAlphabet()

func byteAlphabet() (runes [256]rune, bytes [0x144]int16) {
	for i := range bytes {
		bytes[i] = -1
	}
	next := rune(0x100)
	for b := range 256 {
		printable := b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE
		if printable {
			runes[b] = rune(b)
		} else {
			runes[b] = next
			next++
		}
		bytes[runes[b]] = int16(b)
	}
	return runes, bytes
}

// byteLevel spells text's bytes as characters.
func byteLevel(text string) string {
	var b strings.Builder
	b.Grow(2 * len(text))
	for i := range len(text) {
		b.WriteRune(byteRunes[text[i]])
	}
	return b.String()
}

// fromByteLevel appends the bytes that token spells; a token with a character that spells no byte stands for itself.
func fromByteLevel(dst []byte, token string) []byte {
	from := len(dst)
	for _, r := range token {
		if int(r) >= len(runeBytes) || runeBytes[r] < 0 {
			return append(dst[:from], token...)
		}
		dst = append(dst, byte(runeBytes[r]))
	}
	return dst
}

package store

// Token is one token of an answer as the token view shows it.
type Token struct {
	ID      int32
	Text    string  // whole UTF-8 text that this token released; "" while a character was incomplete
	Logprob float32 // natural logarithm
	Top     []Alternative
}

// Alternative is a token that could have come instead.
type Alternative struct {
	ID      int32
	Text    string
	Logprob float32
}

package web

// System is the page about the machine and the model.
type System struct {
	Page     Page
	Loading  *LoadState // nil = ready
	Model    []Fact
	Engine   []Fact
	Memory   []MemoryPart
	Load     []Fact
	Process  []Fact
	Findings []Finding
}

// LoadState is how far the model is, or why it is not there.
type LoadState struct {
	Done, Total int64
	Failed      bool
	Message     string
	Hint        string
}

// MemoryPart is a part of the memory in use. Bytes below 0 = not known.
type MemoryPart struct {
	Name  string
	Bytes int64
	Note  string
}

// Finding is one thing that the doctor looked at. Status: ok, warn, fail.
type Finding struct{ Name, Status, Detail, Hint string }

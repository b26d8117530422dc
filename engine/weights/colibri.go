package weights

// formatNote is the entry of __metadata__ that names the storage format of tensors: a JSON object of texts by tensor.
const formatNote = "colibri.fmt"

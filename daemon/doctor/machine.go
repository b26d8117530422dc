package doctor

import (
	"bufio"
	"io/fs"
	"strings"
)

// processor reads the name and those instruction sets that kernels are written for from /proc/cpuinfo below root.
func processor(root fs.FS) (name string, features []string) {
	name = "unknown processor"
	file, err := root.Open("proc/cpuinfo")
	if err != nil {
		return name, nil
	}
	defer file.Close()
	wanted := []string{"avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp"}
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		key, value, _ := strings.Cut(scanner.Text(), ":")
		switch strings.TrimSpace(key) {
		case "model name":
			name = strings.TrimSpace(value)
		case "flags", "Features":
			has := " " + strings.TrimSpace(value) + " "
			for _, w := range wanted {
				if strings.Contains(has, " "+w+" ") {
					features = append(features, w)
				}
			}
			return name, features // every core says the same
		}
	}
	return name, features
}

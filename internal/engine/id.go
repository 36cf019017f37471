package engine

import "fmt"

// CheckID reports whether id can name a sandbox: 1 to 40 of [a-z0-9-], the
// first not a dash. Engines use it as part of paths and of cgroup names.
func CheckID(id string) error {
	ok := len(id) >= 1 && len(id) <= 40 && id[0] != '-'
	for _, c := range []byte(id) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-')
	}
	if !ok {
		return fmt.Errorf("sandbox id %q: want 1 to 40 of a-z, 0-9 and -", id)
	}
	return nil
}

// Check reports the first limit that cannot be.
func (l Limits) Check() error {
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"memory", l.Memory > 0}, {"cpus", l.CPUs > 0}, {"pids", l.PIDs > 0},
		{"tmp", l.Tmp >= 0}, {"disk", l.Disk > 0}, {"inodes", l.Inodes > 0},
	} {
		if !f.ok {
			return fmt.Errorf("limit %s: must be positive", f.name)
		}
	}
	return nil
}

package sandbox

import "time"

// usage is what was asked of a lane.
type usage struct {
	hits, misses map[string]int64 // by runtime
	recent       []time.Time      // the last maxRecent
	most         int              // at once, of late
	mostAt       time.Time
}

const (
	maxRecent = 64
	// atOnce is in what time runs count as made at once: those that a pool
	// cannot be refilled between.
	atOnce = 5 * time.Second
	// remembered is how long a pool stays as large as it once had to be.
	remembered = 10 * time.Minute
)

func (u *usage) note(runtime string, hit bool, now time.Time) {
	if u.hits == nil {
		u.hits, u.misses = map[string]int64{}, map[string]int64{}
	}
	if hit {
		u.hits[runtime]++
	} else {
		u.misses[runtime]++
	}
	u.recent = append(u.recent, now)
	u.recent = u.recent[max(0, len(u.recent)-maxRecent):]
	if n := u.within(atOnce, now); n >= u.peak(now) {
		u.most, u.mostAt = n, now
	}
}

// last is when the lane was asked last.
func (u *usage) last() time.Time {
	if len(u.recent) == 0 {
		return time.Time{}
	}
	return u.recent[len(u.recent)-1]
}

func (u *usage) within(d time.Duration, now time.Time) int {
	n := 0
	for _, t := range u.recent {
		if now.Sub(t) < d {
			n++
		}
	}
	return n
}

// peak is how many runs came at once, of late.
func (u *usage) peak(now time.Time) int {
	if now.Sub(u.mostAt) > remembered {
		return 0
	}
	return u.most
}

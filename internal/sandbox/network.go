package sandbox

import (
	"context"
	"fmt"

	"belljar/internal/engine"
)

// maxDenied is how many denials a result lists.
const maxDenied = 20

// networkDenied lists what the network of a run's sandbox has refused. The
// sandbox is fresh, so all of it is the script's doing.
func (m *Manager) networkDenied(ctx context.Context, b *box) []string {
	reporter, ok := m.o.Engine.(engine.NetworkReporter)
	if !ok || m.o.Network.None() {
		return nil
	}
	use, err := reporter.NetworkUse(ctx, b.id, 0)
	if err != nil {
		m.o.Log.Warn("what the network refused is not known", "sandbox", b.id, "err", err)
		return nil
	}
	return DeniedList(use.Denied)
}

// DeniedList is a list of denials for people to read, shortened if it is long.
func DeniedList(all []engine.Denial) []string {
	var list []string
	for i, d := range all {
		if i == maxDenied && len(all) > maxDenied+1 {
			return append(list, fmt.Sprintf("and %d others", len(all)-i))
		}
		list = append(list, d.String())
	}
	return list
}

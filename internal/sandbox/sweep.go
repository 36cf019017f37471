package sandbox

import (
	"context"
	"fmt"
	"time"

	"belljar/internal/engine"
)

// Start removes what an earlier process of this server left behind, and
// begins the periodic sweep. It fails if the engine cannot list sandboxes; a
// removal that fails is logged and tried again by the next sweep.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.Sweep(ctx); err != nil {
		return err
	}
	if err := m.begin(); err != nil {
		return err
	}
	go m.loop()
	return nil
}

func (m *Manager) loop() {
	defer m.work.Done()
	tick := time.NewTicker(m.o.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-m.closing:
			return
		case <-tick.C:
		}
		if err := m.Sweep(m.base); err != nil {
			m.o.Log.Warn("the sweep failed", "err", err)
		}
	}
}

// Sweep removes sandboxes that have expired, runs that no run of this process
// stands behind, and what could not be removed before. Expiry is read from
// the engine, which keeps it durably. It fails if the engine cannot list
// sandboxes; a removal that fails is logged and left to the next sweep.
func (m *Manager) Sweep(ctx context.Context) error {
	list, err := m.o.Engine.List(ctx)
	if err != nil {
		return fmt.Errorf("listing sandboxes: %w", err)
	}
	for _, s := range list {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("sweeping sandboxes: %w", err)
		}
		m.sweepOne(ctx, s)
	}
	m.sweepKnown()
	return nil
}

func (m *Manager) sweepOne(ctx context.Context, s engine.Status) {
	if server := s.Labels[labelServer]; server != "" && server != m.o.ServerID {
		return // another server's
	}
	if _, ok := m.box(s.ID); ok {
		return // sweepKnown sees to it
	}
	expired := !s.Expires.IsZero() && m.o.Now().After(s.Expires)
	var orphan bool
	switch s.Labels[labelKind] {
	case kindRun, kindProbe, kindSpare, "":
		// A run lives as long as its call, a spare one as long as its pool,
		// and this process has none. What has no label is a creation that
		// was cut off.
		orphan = true
	}
	if !expired && !orphan {
		return
	}
	log := m.o.Log.With("sandbox", s.ID, "boot", s.Labels[labelBoot], "expired", expired)
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	if err := m.o.Engine.Remove(ctx, s.ID); err != nil {
		log.Warn("removing a leftover sandbox failed", "err", err)
		return
	}
	log.Info("removed a leftover sandbox")
}

// sweepKnown ends this process's sandboxes that have outlived their time, and
// tries again to remove those that resisted. Those still being removed by
// their own goroutine are removed twice, which is no error.
func (m *Manager) sweepKnown() {
	for _, id := range m.left() {
		b, ok := m.box(id)
		if !ok {
			continue
		}
		if _, expires := b.times(); m.o.Now().After(expires) {
			b.end()
			if b.to(Ending) == nil {
				m.o.Log.Warn("a sandbox has outlived its time", "sandbox", b.id)
			}
		}
		if !b.is(Ending) {
			continue
		}
		if err := m.remove(b); err != nil {
			m.o.Log.Warn("removing a sandbox failed", "sandbox", b.id, "err", err)
		}
		b.leave()
	}
}

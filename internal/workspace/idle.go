package workspace

// StopIdle stops the workspaces that nobody has used for the time that the
// options give, and that have no process but their agent.
func (m *Manager) StopIdle() {
	for _, b := range m.all() {
		if !b.idle() {
			continue
		}
		// It is refused while something runs in it.
		if err := b.stop(m.base, false); err != nil {
			m.o.Log.Debug("an idle workspace goes on", "workspace", b.id, "reason", err)
		}
	}
}

func (b *box) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state == Running && b.leases == 0 && b.m.o.Now().Sub(b.used) >= b.m.o.IdleStop
}

package native

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"belljar/internal/egress"
	"belljar/internal/engine"
	"belljar/internal/engine/enginetest"
)

// networked changes a spec to one with a network.
func networked(t *testing.T, reach, except string) func(*engine.Spec) {
	t.Helper()
	if err := egress.Probe(); err != nil {
		t.Skipf("needs TUN devices: %v", err)
	}
	n, err := engine.ParseNetwork(reach, except)
	if err != nil {
		t.Fatal(err)
	}
	return func(s *engine.Spec) { s.Network = n }
}

func TestNetworkInside(t *testing.T) {
	s, c := started(t, networked(t, "internet", ""))
	got := strings.Fields(enginetest.Output(t, c, "ls /sys/class/net"))
	if !slices.Equal(got, []string{"eth0", "lo"}) {
		t.Errorf("interfaces: %v", got)
	}
	out := enginetest.Output(t, c, "cat /etc/resolv.conf /etc/hosts; ls -ln /etc/hosts; prober ping 127.0.0.1 && prober ping "+egress.Gateway4.String()+" && nc -w 5 "+egress.Gateway4.String()+" 53 </dev/null && echo all")
	for _, want := range []string{"nameserver " + egress.Gateway4.String() + "\n", "127.0.0.1\tlocalhost", " 0 ", "\nall\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("inside: %s, want %q", out, want)
		}
	}
	if r, err := s.Engine.Inspect(t.Context(), "inside"); err != nil || r.Network != "the internet, without private addresses" || len(r.Unenforced()) > 0 {
		t.Errorf("receipt: %q %v, %v", r.Network, r.Unenforced(), err)
	}
	// Root inside has no say in it.
	for _, cmd := range []string{"ip link set eth0 down", "ip addr add 10.0.0.1/8 dev eth0", "ip route add 10.0.0.0/8 dev lo", "ip tuntap add tun9 mode tun"} {
		if st := enginetest.Shell(t, c, cmd+" 2>&1"); st.ExitCode == 0 {
			t.Errorf("allowed: %s", cmd)
		}
	}
	if ping := enginetest.Shell(t, c, "prober | grep raw"); strings.Contains(string(ping.Stdout.Head), "allowed") {
		t.Errorf("raw sockets: %s", ping.Stdout.Head)
	}
}

// TestHostIsOutOfReach listens on every address of the host, and tries to get
// there from inside, and to another sandbox.
func TestHostIsOutOfReach(t *testing.T) {
	s, c := started(t, networked(t, "internet", ""))
	other := start(t, s, "other", networked(t, "internet", ""))
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reached := make(chan net.Addr, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			reached <- conn.RemoteAddr()
			conn.Close()
		}
	}()
	enginetest.Shell(t, other, "nc -l -p 7777 -e echo other >/dev/null 2>&1 &")
	port := l.Addr().(*net.TCPAddr).Port
	tries := []string{"169.254.169.254 80", "100.100.100.200 80", egress.Gateway4.String() + " 80", egress.Address4.Addr().String() + " 7777"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil {
			tries = append(tries, fmt.Sprintf("%s %d", ip, port), fmt.Sprintf("::ffff:%s %d", ip, port))
		}
	}
	for _, try := range tries {
		begun := time.Now()
		st := enginetest.Shell(t, c, "nc -w 5 "+try+" </dev/null 2>&1")
		if st.ExitCode == 0 || strings.Contains(string(st.Stdout.Head), "other") || time.Since(begun) > 4*time.Second {
			t.Errorf("%s: exit code %d after %v, %s", try, st.ExitCode, time.Since(begun), st.Stdout.Head)
		}
	}
	select {
	case from := <-reached:
		t.Errorf("the host was reached, from %v", from)
	default:
	}
	use, err := e(s).NetworkUse(t.Context(), "inside", 0)
	if err != nil || len(use.Denied) == 0 || use.Refused < 3 {
		t.Errorf("use: %+v, %v", use, err)
	}
	if again, err := e(s).NetworkUse(t.Context(), "inside", use.Cursor); err != nil || len(again.Denied) != 0 {
		t.Errorf("a later report: %+v, %v", again, err)
	}
}

// TestNetworkProcess looks at the process as the kernel shows it.
func TestNetworkProcess(t *testing.T) {
	s, _ := started(t, networked(t, "internet", ""))
	pid := networkPID(t, e(s))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	user := fmt.Sprint(e(s).ids.networkUser())
	for _, want := range []string{
		"\nUid:\t" + strings.Repeat(user+"\t", 3) + user, "\nGid:\t" + strings.Repeat(user+"\t", 3) + user,
		"\nGroups:\t \n", "\nCapInh:\t0000000000000000", "\nCapPrm:\t0000000000000000", "\nCapEff:\t0000000000000000",
		"\nCapBnd:\t0000000000000000", "\nCapAmb:\t0000000000000000", "\nNoNewPrivs:\t1",
	} {
		if !strings.Contains(string(status), want) {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil || len(env) > 0 {
		t.Errorf("environment %q, %v", env, err)
	}
	if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/", pid)); err != nil || len(entries) > 0 {
		t.Errorf("its root has %v, %v", entries, err)
	}
	if sid, err := syscall.Getpgid(pid); err != nil || sid != pid {
		t.Errorf("its group is %d, %v", sid, err)
	}
	// It has sockets, its TUN devices and process descriptors, and no file.
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) < 5 {
		t.Fatalf("descriptors: %v, %v", fds, err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		known := to == "/dev/null" || to == "/dev/net/tun" || strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "anon_inode:")
		if err == nil && !known {
			t.Errorf("it holds %s", to)
		}
	}
}

// networkPID returns the process of an engine.
func networkPID(t *testing.T, e *Engine) int {
	t.Helper()
	pids := e.cg.procs(e.group(netGroup))
	if len(pids) != 1 {
		t.Fatalf("processes of the network: %v", pids)
	}
	return pids[0]
}

// TestNetworkProcessKilled kills the process and wants the sandbox to have a
// network again, by another one.
func TestNetworkProcessKilled(t *testing.T) {
	s, c := started(t, networked(t, "internet", ""))
	pid := networkPID(t, e(s))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	enginetest.Output(t, c, "for i in $(seq 100); do nc -w 1 "+egress.Gateway4.String()+" 53 </dev/null && exit 0; sleep 0.2; done; exit 1")
	if again := networkPID(t, e(s)); again == pid {
		t.Error("it is the same process")
	}
	if r, err := s.Engine.Inspect(t.Context(), "inside"); err != nil || len(r.Unenforced()) > 0 {
		t.Errorf("receipt: %v, %v", r.Unenforced(), err)
	}
}

// TestNetworkSurvivesRestart has a server succeed another one.
func TestNetworkSurvivesRestart(t *testing.T) {
	s, c := started(t, networked(t, "internet", ""))
	pid := networkPID(t, e(s))
	enginetest.Shell(t, c, "nc -w 1 10.9.8.7 99 </dev/null")
	c.Close()
	s.Engine = s.Reopen()
	if again := networkPID(t, e(s)); again != pid {
		t.Errorf("process %d, then %d", pid, again)
	}
	c = s.Connect(t, "inside")
	enginetest.Output(t, c, "prober ping "+egress.Gateway4.String())
	use, err := e(s).NetworkUse(t.Context(), "inside", 0)
	if err != nil || len(use.Denied) != 1 || !strings.Contains(use.Denied[0].String(), "10.9.8.7:99 tcp: private address") {
		t.Errorf("use: %+v, %v", use, err)
	}
	// It ends with its last sandbox and the server.
	if err := s.Engine.Remove(t.Context(), "inside"); err != nil {
		t.Fatal(err)
	}
	s.Engine = s.Reopen()
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("the process is still there")
	}
}

// BenchmarkStart makes sandboxes with a network and without, by turns, so that
// both see the same machine.
func BenchmarkStart(b *testing.B) {
	e, err := Open(b.Context(), options(b.TempDir(), ""))
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	kinds := []engine.Network{{}, {Internet: true}}
	times := map[bool][]time.Duration{}
	for i := 0; b.Loop(); i++ {
		for j, network := range kinds {
			spec := engine.Spec{ID: fmt.Sprintf("b%d-%d", i, j), Image: "busybox", Limits: enginetest.Limits(), Network: network}
			if err := e.Create(b.Context(), spec); err != nil {
				b.Fatal(err)
			}
			begun := time.Now()
			if err := e.Start(b.Context(), spec.ID); err != nil {
				b.Fatal(err)
			}
			conn, err := e.Connect(b.Context(), spec.ID)
			if err != nil {
				b.Fatal(err)
			}
			times[network.None()] = append(times[network.None()], time.Since(begun))
			conn.Close()
			if err := e.Remove(b.Context(), spec.ID); err != nil {
				b.Fatal(err)
			}
		}
	}
	for none, all := range times {
		slices.Sort(all)
		name := "with-ms"
		if none {
			name = "without-ms"
		}
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name)
	}
}

// TestNoProgram has an engine that cannot give what is asked for, and says so.
func TestNoProgram(t *testing.T) {
	o := options(t.TempDir(), "")
	o.Network = nil
	s := newSubject(t, o)
	c := start(t, s, "inside", networked(t, "internet", ""))
	if got := strings.TrimSpace(enginetest.Output(t, c, "ls /sys/class/net")); got != "lo" {
		t.Errorf("interfaces: %q", got)
	}
	r, err := s.Engine.Inspect(t.Context(), "inside")
	if err != nil || !strings.HasPrefix(r.Network, "none") || len(r.Unenforced()) != 1 {
		t.Errorf("receipt: %q %v, %v", r.Network, r.Unenforced(), err)
	}
}

// TestSetNetwork changes what a sandbox reaches, while it runs and while it
// does not.
func TestSetNetwork(t *testing.T) {
	s, c := started(t, nil)
	gateway := "nc -w 5 " + egress.Gateway4.String() + " 53 </dev/null"
	set := func(change func(*engine.Spec)) {
		t.Helper()
		var spec engine.Spec
		change(&spec)
		if err := e(s).SetNetwork(t.Context(), "inside", spec.Network); err != nil {
			t.Fatal(err)
		}
	}
	if st := enginetest.Shell(t, c, gateway); st.ExitCode == 0 {
		t.Error("there is a network that nobody asked for")
	}
	set(networked(t, "internet", ""))
	enginetest.Output(t, c, gateway)
	set(func(*engine.Spec) {})
	if st := enginetest.Shell(t, c, "timeout 5 "+gateway); st.ExitCode == 0 {
		t.Error("the network is still there")
	}
	if r, err := s.Engine.Inspect(t.Context(), "inside"); err != nil || !strings.HasPrefix(r.Network, "none") || len(r.Unenforced()) > 0 {
		t.Errorf("receipt: %q %v, %v", r.Network, r.Unenforced(), err)
	}
	c.Close()
	if err := s.Engine.Stop(t.Context(), "inside"); err != nil {
		t.Fatal(err)
	}
	set(networked(t, "one.example,1.2.3.4", ""))
	if err := s.Engine.Start(t.Context(), "inside"); err != nil {
		t.Fatal(err)
	}
	c = s.Connect(t, "inside")
	enginetest.Output(t, c, gateway)
	if r, err := s.Engine.Inspect(t.Context(), "inside"); err != nil || r.Network != "only one.example, 1.2.3.4" {
		t.Errorf("receipt: %q, %v", r.Network, err)
	}
}

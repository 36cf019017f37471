package egress

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

const (
	bulk     = 256 << 20 // of one transfer, in bytes
	sinkPort = 9400
	fillPort = 9401
)

// BenchmarkThroughput moves data through the real process, and through
// slirp4netns where that is installed, by turns: both ways, in Gb/s, the median
// of all transfers.
func BenchmarkThroughput(b *testing.B) {
	w := newWorld(b)
	w.listen(w.internet, sinkPort, func(c net.Conn) {
		io.Copy(io.Discard, c)
		io.WriteString(c, "x")
	})
	w.listen(w.internet, fillPort, func(c net.Conn) { io.CopyN(c, zeros{}, bulk) })
	c, _ := w.connect(b.TempDir(), "", nil)
	defer c.Close()
	ours, _ := w.attached(c, "a")
	contestants := map[string]*jar{"belljar": ours}
	if slirp := w.slirp(b); slirp != nil {
		contestants["slirp4netns"] = slirp
	}
	rates := map[string][]float64{}
	for b.Loop() {
		for name, j := range contestants {
			rates[name+"-up-Gb/s"] = append(rates[name+"-up-Gb/s"], transfer(b, j, sinkPort, up))
			rates[name+"-down-Gb/s"] = append(rates[name+"-down-Gb/s"], transfer(b, j, fillPort, down))
		}
	}
	for name, all := range rates {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name)
	}
}

func up(c net.Conn) error {
	if _, err := io.CopyN(struct{ io.Writer }{c}, struct{ io.Reader }{zeros{}}, bulk); err != nil {
		return err
	}
	c.(*net.TCPConn).CloseWrite()
	_, err := io.ReadAll(c) // until all has arrived
	return err
}

func down(c net.Conn) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 1<<20))
	if err == nil && n != bulk {
		err = fmt.Errorf("%d bytes", n)
	}
	return err
}

// transfer returns how fast one went, in Gb/s.
func transfer(b *testing.B, j *jar, port int, f func(net.Conn) error) float64 {
	b.Helper()
	c, err := j.dial("tcp", at(public4, port))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	begun := time.Now()
	if err := f(c); err != nil {
		b.Fatal(err)
	}
	return bulk * 8 / time.Since(begun).Seconds() / 1e9
}

// slirp returns a namespace whose network is slirp4netns, nil without it.
func (w *world) slirp(b *testing.B) *jar {
	path, err := exec.LookPath("slirp4netns")
	if err != nil {
		b.Log("slirp4netns is not installed")
		return nil
	}
	j := &jar{namespace: newNamespace(b)}
	ready, tell, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer ready.Close()
	cmd := exec.Command(path, "--configure", "--mtu=65520", "--ready-fd=4", "--netns-type=path", "/proc/self/fd/3", "tap0")
	cmd.ExtraFiles = []*os.File{j.fd, tell}
	cmd.Stderr = os.Stderr
	w.home.run(cmd.Start)
	tell.Close()
	b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		b.Fatalf("slirp4netns is not ready: %v", err)
	}
	return j
}

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"belljar/internal/access"
	"belljar/internal/agent"
	"belljar/internal/engine"
	"belljar/internal/lang"
)

// RuntimeInfo describes a runtime as it is in its image.
type RuntimeInfo struct {
	Name      string `json:"name" jsonschema:"what run_script calls it"`
	Title     string `json:"title"`
	Available bool   `json:"available"`
	// Hint says what Belljar adds to the language.
	Hint string `json:"hint,omitempty" jsonschema:"what to know when writing a script"`
	// Reason says why the runtime is not available.
	Reason    string `json:"reason,omitempty" jsonschema:"why it is not available"`
	Version   string `json:"version,omitempty"`
	Extension string `json:"extension" jsonschema:"of the script's file"`
	Image     string `json:"image"`
	// Packages are "name version" each, as the runtime lists them.
	Packages []string `json:"packages,omitempty" jsonschema:"what is installed"`
	// Missing are "part: reason" each, where a build left parts out.
	Missing []string `json:"missing,omitempty" jsonschema:"parts that its image was built without, and why"`
	// Limits are those of a run, nil if the runtime is not available.
	Limits         *Limits `json:"limits,omitempty" jsonschema:"what bounds a run, at the default timeout"`
	DefaultTimeout float64 `json:"default_timeout_seconds"`
	MaxTimeout     float64 `json:"max_timeout_seconds"`
}

const (
	// probeTime bounds one probe of an image.
	probeTime = 60 * time.Second
	// probeFresh is how long a probe's answer is used. An image may be built
	// anew under the same name.
	probeFresh = 10 * time.Minute

	versionBytes = 100
	packageBytes = 200  // a line
	packageLines = 1000 // all
)

// probe is what a sandbox of an image said of the runtimes in it.
type probe struct {
	at    time.Time
	infos map[string]RuntimeInfo // by runtime
}

// Runtimes describes the runtimes of the table, sorted by name. Versions and
// packages are asked from the images, and kept for a while. A runtime whose
// image cannot be asked is not available.
func (m *Manager) Runtimes(ctx context.Context) ([]RuntimeInfo, error) {
	byImage := map[string]map[string]RuntimeInfo{}
	var infos []RuntimeInfo
	for _, r := range m.o.Table.All() {
		image := m.image(r)
		if byImage[image] == nil {
			asked, err := m.askShared(ctx, image)
			if err != nil {
				return nil, err
			}
			byImage[image] = asked
		}
		infos = append(infos, byImage[image][r.Name])
	}
	return infos, nil
}

// askShared returns what is known of an image. Concurrent callers share one
// probe, which goes on when one of them gives up.
func (m *Manager) askShared(ctx context.Context, image string) (map[string]RuntimeInfo, error) {
	m.mu.Lock()
	known, ok := m.probes[image]
	m.mu.Unlock()
	if ok && m.o.Now().Sub(known.at) < probeFresh {
		return known.infos, nil
	}
	answer := m.probing.DoChan(image, func() (any, error) {
		if err := m.begin(); err != nil {
			return nil, err
		}
		defer m.work.Done()
		infos, err := m.ask(m.base, image)
		if err != nil {
			return m.unavailable(image, err), nil
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.probes[image] = probe{at: m.o.Now(), infos: infos}
		return infos, nil
	})
	select {
	case a := <-answer:
		if a.Err != nil {
			return nil, a.Err
		}
		return a.Val.(map[string]RuntimeInfo), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("asking the image %s for its runtimes: %w", image, ctx.Err())
	}
}

// ask starts a sandbox of an image and asks it for all its runtimes.
func (m *Manager) ask(ctx context.Context, image string) (map[string]RuntimeInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	ctx, b := m.register(ctx, kindProbe, probeTime, func() {})
	defer m.destroy(b)
	s, err := m.launchNow(ctx, b, m.spec(b, kindProbe, plan{Request: Request{Subject: access.Owner}, image: image}))
	if err != nil {
		return nil, err
	}
	c := s.c
	defer c.Close()
	receipt, err := m.o.Engine.Inspect(ctx, b.id)
	if err != nil {
		return nil, fmt.Errorf("reading the limits of sandbox %s: %w", b.id, err)
	}
	if err := b.to(Used); err != nil {
		return nil, err
	}
	missing := m.missing(ctx, c, b.id)
	infos := map[string]RuntimeInfo{}
	for _, r := range m.o.Table.All() {
		if m.image(r) != image {
			continue
		}
		info, err := m.askOne(ctx, c, r, missing[r.Name], receipt)
		if err != nil {
			return nil, fmt.Errorf("asking sandbox %s for %s: %w", b.id, r.Name, err)
		}
		info.Missing = lacking(r.Name, missing)
		infos[r.Name] = info
	}
	return infos, nil
}

// askOne asks for one runtime; missing says why it is not in the image, if
// the image says so.
func (m *Manager) askOne(ctx context.Context, c *agent.Client, r lang.Runtime, missing string, receipt engine.Receipt) (RuntimeInfo, error) {
	info := m.info(r)
	s, err := m.command(ctx, c, r.Name+"-version", r.Version, r)
	if err != nil {
		return info, err
	}
	version := firstLine(s.Stdout.Head)
	switch {
	case s.TimedOut:
		info.Reason = "its version command did not end in time"
	case s.ExitCode == codeNotFound && missing != "":
		info.Reason = fmt.Sprintf("the image %q was built without it: %s", info.Image, missing)
	case s.ExitCode == codeNotFound || s.ExitCode == codeNotExec:
		info.Reason = fmt.Sprintf("%s is not installed in the image %q", r.Title, info.Image)
	case s.ExitCode != 0:
		info.Reason = fmt.Sprintf("its version command ended with exit code %d: %s", s.ExitCode, firstLine(s.Stderr.Head))
	case version == "":
		info.Reason = "its version command printed nothing"
	}
	if info.Reason != "" {
		return info, nil
	}
	info.Available, info.Version = true, version
	limits := m.limits(receipt, m.o.DefaultTimeout)
	info.Limits = &limits
	if len(r.Packages) == 0 {
		return info, nil
	}
	s, err = m.command(ctx, c, r.Name+"-packages", r.Packages, r)
	if err != nil {
		return info, err
	}
	if s.ExitCode == 0 {
		info.Packages = lines(s.Stdout.Head)
	}
	return info, nil
}

// command runs one of a runtime's commands to its end.
func (m *Manager) command(ctx context.Context, c *agent.Client, id string, argv []string, r lang.Runtime) (agent.JobStatus, error) {
	job := agent.JobSpec{
		ID:      jobName(id),
		Argv:    argv,
		Env:     r.Environ(),
		Dir:     agent.Workdir,
		Timeout: probeTime / 3,
		Keep:    packageBytes * packageLines,
	}
	if err := c.StartJob(ctx, job); err != nil {
		return agent.JobStatus{}, err
	}
	return c.WaitJob(ctx, job.ID)
}

// jobName makes a job's identifier of a runtime's name, which may be "c++".
func jobName(id string) string { return strings.ReplaceAll(id, "+", "_") }

func (m *Manager) info(r lang.Runtime) RuntimeInfo {
	return RuntimeInfo{
		Name:           r.Name,
		Title:          r.Title,
		Hint:           r.Hint,
		Extension:      r.Extension,
		Image:          m.image(r),
		DefaultTimeout: m.o.DefaultTimeout.Seconds(),
		MaxTimeout:     m.o.MaxTimeout.Seconds(),
	}
}

// unavailable describes the runtimes of an image that could not be asked.
func (m *Manager) unavailable(image string, err error) map[string]RuntimeInfo {
	reason := "a sandbox of its image could not be asked; the server's log says why"
	var refused *RequestError
	if errors.As(err, &refused) {
		reason = refused.Message
	} else {
		m.o.Log.Error("asking an image for its runtimes failed", "image", image, "err", err)
	}
	infos := map[string]RuntimeInfo{}
	for _, r := range m.o.Table.All() {
		if m.image(r) == image {
			info := m.info(r)
			info.Reason = reason
			infos[r.Name] = info
		}
	}
	return infos
}

// firstLine returns the first line with something in it, as short valid text.
func firstLine(b []byte) string {
	for _, line := range lines(b) {
		return cutText(line, versionBytes)
	}
	return ""
}

// lines splits output into lines, leaving out empty ones and what is too much.
func lines(b []byte) []string {
	var all []string
	for line := range strings.Lines(strings.ToValidUTF8(string(b), "\uFFFD")) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if all = append(all, cutText(line, packageBytes)); len(all) == packageLines {
			break
		}
	}
	return all
}

func cutText(s string, max int) string {
	s, _ = convert([]byte(s), max)
	return s
}

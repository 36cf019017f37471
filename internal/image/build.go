package image

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// BuildOptions say what to build.
type BuildOptions struct {
	// Name is what the image will be called.
	Name string
	// Containerfile is the path of the file to build from.
	Containerfile string
	// Context is the directory that COPY reads from, default the
	// Containerfile's.
	Context string
	// Args are values for the Containerfile's ARGs.
	Args map[string]string
	// NoCache executes every step, also those whose outcome is known.
	NoCache bool
}

const maxContainerfile = 1 << 20 // bytes

// Build executes a Containerfile, running its commands with r, and names the
// image. Steps whose outcome is known from the newest builds are not executed
// again, except those that had to leave something out (see Missing): they try
// again. Builds of one store wait for each other.
//
// A base image that is not in the store is pulled. Where no registry answers,
// a Debian release is made from the machine's Debian mirror instead; Source
// tells.
func (s *Store) Build(ctx context.Context, o BuildOptions, r Runner, p Progress) (Image, error) {
	name, err := parseTag(o.Name)
	if err != nil {
		return Image{}, err
	}
	img, err := s.build(ctx, name, o, r, serial(p))
	if err != nil {
		return Image{}, fmt.Errorf("building %s from %s: %w", name, o.Containerfile, err)
	}
	return img, nil
}

func (s *Store) build(ctx context.Context, name string, o BuildOptions, r Runner, p Progress) (Image, error) {
	pl, err := readPlan(o)
	if err != nil {
		return Image{}, err
	}
	for _, w := range pl.warnings {
		p(Event{Text: "warning: " + w})
	}
	if o.Context == "" {
		o.Context = filepath.Dir(o.Containerfile)
	}
	files, err := s.openContext(o.Context, o.Containerfile)
	if err != nil {
		return Image{}, fmt.Errorf("build context: %w", err)
	}
	defer files.root.Close()

	select {
	case s.builder <- struct{}{}:
		defer func() { <-s.builder }()
	case <-ctx.Done():
		return Image{}, ctx.Err()
	}
	total := pl.total()
	p(Event{Step: 1, Steps: total, Text: pl.fromText})
	base, release, err := s.base(ctx, pl.from, p)
	if err != nil {
		return Image{}, fmt.Errorf("%s: %w", pl.fromText, err)
	}
	defer release()
	steps, config, err := pl.steps(base.Config)
	if err != nil {
		return Image{}, err
	}
	b := &builder{
		Store: s, name: name, options: o, runner: r, progress: p, files: files,
		base: base, key: base.Digest, total: total,
	}
	defer b.end()
	for i, st := range steps {
		if err := b.step(ctx, i+2, st); err != nil {
			return Image{}, &planError{st.line, fmt.Errorf("%s: %w", st.text, err)}
		}
	}
	return b.finish(ctx, pl.from, config)
}

func readPlan(o BuildOptions) (*plan, error) {
	f, err := os.Open(o.Containerfile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxContainerfile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxContainerfile {
		return nil, fmt.Errorf("more than %d bytes", maxContainerfile)
	}
	return parsePlan(data, o.Args)
}

// base acquires the image of a FROM, getting it from where it can be had.
func (s *Store) base(ctx context.Context, from string, p Progress) (Image, func(), error) {
	if from == "scratch" {
		dir, err := s.newRoot("scratch-")
		return Image{Digest: "scratch", Rootfs: dir}, func() { removeAll(dir) }, err
	}
	if fullDigest.MatchString(from) {
		return s.Acquire(from)
	}
	r, err := parseName(from)
	if err != nil {
		return Image{}, nil, err
	}
	img, release, err := s.Acquire(from)
	if err == nil {
		if slices.Contains(img.Names, familiar(r)) {
			return img, release, nil
		}
		release() // only the beginning of its digest looks like the name
	}
	img, err = s.pull(ctx, r, p)
	if err != nil && unreachable(err) && ctx.Err() == nil {
		suite, ok := debianSuite(r)
		if !ok {
			return Image{}, nil, fmt.Errorf("no registry answers, and only Debian's images can be made without one: %w", err)
		}
		registry := err
		if img, err = s.bootstrap(ctx, r, suite, p); err != nil {
			err = fmt.Errorf("no registry answers (%w); %w", registry, err)
		}
	}
	if err != nil {
		return Image{}, nil, err
	}
	return s.Acquire(img.Digest)
}

// builder is a build under way.
type builder struct {
	*Store
	name     string
	options  BuildOptions
	runner   Runner
	progress Progress
	files    *buildContext
	base     Image
	total    int // steps, FROM included

	key    string   // of the last step
	done   []cached // the steps so far
	warned bool     // of the network
}

// lower is the root filesystem as the steps so far left it.
func (b *builder) lower() view {
	var v view
	for _, c := range slices.Backward(b.done) {
		v = append(v, b.path("layers", c.Layer))
	}
	return append(v, b.base.Rootfs)
}

// step executes a step, or finds its outcome.
func (b *builder) step(ctx context.Context, n int, st buildStep) error {
	var entries []copyEntry
	if st.Copy != nil {
		var err error
		if entries, err = b.files.gather(*st.Copy); err != nil {
			return err
		}
	}
	b.key = stepKey(b.key, st, entries)
	event := Event{Step: n, Steps: b.total, Text: st.text}
	old, known := b.known(b.key)
	if known && len(old.Missing) == 0 {
		event.Text += " (cached)"
		b.progress(event)
		b.follow(old)
		return nil
	}
	b.progress(event)
	upper, err := b.newRoot("layer-")
	if err != nil {
		return err
	}
	defer removeAll(upper)
	// The upper directory is what the root directory's mode is seen in.
	if err := copyMeta(upper, b.lower()[0]); err != nil {
		return err
	}
	if err := b.execute(ctx, upper, st, entries, event); err != nil {
		return err
	}
	missing := append(view{upper}, b.lower()...).added()
	if known && slices.Equal(missing, old.Missing) {
		// It tried again in vain: the image need not be another.
		b.follow(old)
		return nil
	}
	return b.keep(upper, missing)
}

// follow makes a step's outcome part of the build.
func (b *builder) follow(c cached) {
	b.done = append(b.done, c)
	if len(c.Missing) > 0 {
		// What comes after stands on this outcome, not on the step's real one.
		b.key = digestOf([]byte(b.key + " " + c.Layer))
	}
}

// stepKey is the digest of all that a step's outcome depends on.
func stepKey(parent string, st buildStep, entries []copyEntry) string {
	data, err := json.Marshal(struct {
		Parent  string
		Step    buildStep
		Content string
	}{parent, st, contentDigest(entries)})
	if err != nil {
		panic(err) // plain data
	}
	return digestOf(data)
}

// known finds the outcome of a step and protects it from being deleted.
func (b *builder) known(key string) (cached, bool) {
	if b.options.NoCache {
		return cached{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.index.outcome(key)
	if ok {
		b.inUse = append(b.inUse, c.Layer)
	}
	return c, ok
}

func (b *builder) execute(ctx context.Context, upper string, st buildStep, entries []copyEntry, e Event) error {
	switch {
	case st.Mkdir != "":
		_, err := makeDirs(upper, b.lower(), st.Mkdir, func(host string) error { return os.Chmod(host, 0o755) })
		return err
	case st.Copy != nil:
		uid, gid, err := b.lower().owner(st.Copy.Chown)
		if err != nil {
			return err
		}
		c := &copier{
			context: b.files, upper: upper, lower: b.lower(),
			dest: st.Copy.Dest, uid: uid, gid: gid, chmod: st.Copy.Chmod,
		}
		return c.copy(entries)
	}
	if !b.warned {
		b.warned = true
		b.progress(Event{Text: "RUN uses the host's network, not that of sandboxes"})
	}
	out := newLines(b.progress, Event{Step: e.Step, Steps: e.Steps})
	defer out.Close()
	// pip meets the marker of an externally managed Python, which goes only
	// from the finished image.
	env := append([]string{"PIP_BREAK_SYSTEM_PACKAGES=1"}, st.Env...)
	if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }) {
		env = append(env, "HOME="+b.lower().home(st.User))
	}
	return b.runner.RunStep(ctx, Step{
		Lower: b.lower(), Upper: upper,
		Argv: st.Run, Env: env, Dir: st.Dir, User: st.User, Output: out,
	})
}

// keep makes a finished layer part of the build and of the cache.
func (b *builder) keep(upper string, missing []Missing) error {
	if err := syncFS(upper); err != nil {
		return err
	}
	id := rand.Text()
	b.mu.Lock()
	b.inUse = append(b.inUse, id)
	b.mu.Unlock()
	return b.update(func() error {
		if err := os.Rename(upper, b.path("layers", id)); err != nil {
			return err
		}
		b.follow(cached{b.key, id, missing})
		b.index.Builds[b.name] = build{Done: b.index.Builds[b.name].Done, Tried: slices.Clone(b.done)}
		return nil
	})
}

// end lets go of the layers.
func (b *builder) end() {
	b.mu.Lock()
	b.inUse = nil
	b.mu.Unlock()
}

// finish makes the image of the base and the layers. Its digest is over what
// it was made of: a layer's name is used once, so two builds have the same
// digest only if they executed nothing anew.
func (b *builder) finish(ctx context.Context, from string, config Config) (Image, error) {
	var ids []string
	for _, c := range b.done {
		ids = append(ids, c.Layer)
	}
	made, err := json.Marshal(struct {
		Format int // changes with what assemble does
		Base   string
		Config Config
		Layers []string
	}{1, b.base.Digest, config, ids})
	if err != nil {
		return Image{}, err
	}
	img := Image{
		Digest: digestOf(made), Names: []string{b.name}, Created: time.Now().UTC(), Config: config,
		Source: fmt.Sprintf("built from %s on %s", filepath.Base(b.options.Containerfile), from),
	}
	if b.base.Source != "" {
		img.Source += " (" + b.base.Source + ")"
	}
	stored, err := b.tag(img.Digest, img.Names)
	if errors.Is(err, ErrNotFound) {
		b.progress(Event{Step: b.total, Steps: b.total, Text: "assembling " + b.name})
		stored, err = b.assemble(ctx, img)
	}
	if err != nil {
		return Image{}, err
	}
	for _, m := range stored.Missing {
		b.progress(Event{Text: "left out: " + m.String()})
	}
	return stored, b.update(func() error {
		b.index.Builds[b.name] = build{Done: b.done}
		return nil
	})
}

func (b *builder) assemble(ctx context.Context, img Image) (Image, error) {
	root, err := b.newRoot("assemble-")
	if err != nil {
		return Image{}, err
	}
	defer removeAll(root)
	layers := slices.Clone(b.lower())
	slices.Reverse(layers)
	if err := flatten(ctx, root, layers); err != nil {
		return Image{}, err
	}
	if err := freePip(root); err != nil {
		return Image{}, err
	}
	if img.Bytes, err = diskUsage(root); err != nil {
		return Image{}, err
	}
	return b.put(img, root)
}

// freePip removes the marker that keeps pip from installing next to the
// distribution's packages: a sandbox is no system to protect.
func freePip(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	markers, err := fs.Glob(root.FS(), "usr/lib/python3*/EXTERNALLY-MANAGED")
	if err != nil {
		return err
	}
	for _, m := range markers {
		if err := root.Remove(m); err != nil {
			return err
		}
	}
	return nil
}

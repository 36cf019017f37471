package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// manyFiles is a script with 500 output files, among them pictures, small
// texts, and a log of its own.
func manyFiles(t *testing.T) Request {
	t.Helper()
	r := bash(`
cd output; mkdir tables
for i in {100..584}; do printf '%s\0' $i >tables/$i.bin; done
for i in 1 2 3 4 5; do cp ../input/p.png z$i.png; done
for i in 1 2 3 4 5 6 7 8 9; do echo text $i >text$i.txt; done
echo last >zz.txt; printf '\377'`)
	r.Inputs = []Input{{Name: "p.png", Data: pngOf(t, 20, 10)}}
	return r
}

// listed is how much of a result are its files, as JSON without text.
func listed(t *testing.T, res *Result) int {
	t.Helper()
	files := slices.Clone(res.OutputFiles)
	for i := range files {
		files[i].Text = nil
	}
	data, err := json.Marshal(files)
	if err != nil {
		t.Fatal(err)
	}
	return len(data)
}

func TestManyFiles(t *testing.T) {
	b := newBench(t)
	res := b.must(t, manyFiles(t))
	if n := listed(t, res); n > listBytes || n < listBytes*9/10 {
		t.Errorf("%d files are listed in %d bytes, want up to %d", len(res.OutputFiles), n, listBytes)
	}
	if !slices.IsSortedFunc(res.OutputFiles, func(a, b File) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("not sorted: %q", names(res))
	}
	// What is most worth seeing is listed, wherever its name stands.
	for _, name := range []string{indexName, "stdout.log", "tables/100.bin", "text1.txt", "text9.txt", "zz.txt", "z1.png", "z4.png"} {
		if !slices.Contains(names(res), name) {
			t.Errorf("%s is not listed", name)
		}
	}
	_, data := b.file(t, res, indexName)
	var all []File
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 501 { // the log as well
		t.Errorf("the list of all has %d files", len(all))
	}
	left := 0
	for _, f := range all {
		if !slices.Contains(names(res), f.Name) {
			left++
			if f.URL == "" || f.ExpiresIn != 3600 || f.MIME == "" || f.Bytes == 0 {
				t.Errorf("%+v", f)
			}
		}
		found, data := b.file(t, &Result{OutputFiles: all}, f.Name)
		if want := textFile(f.Name, data); found.SHA256 != want.SHA256 || found.Bytes != want.Bytes {
			t.Errorf("%s is not what the list says", f.Name)
		}
	}
	wantNote(t, res, fmt.Sprintf("%d of 501 output files are not listed here; all are listed in output_files.json", left))
	if left+len(res.OutputFiles) != 502 {
		t.Errorf("%d are listed and %d are not", len(res.OutputFiles), left)
	}
}

// Who can read a long list gets it, and no file besides.
func TestAllFiles(t *testing.T) {
	r := manyFiles(t)
	r.AllFiles = true
	res := newBench(t).must(t, r)
	if len(res.OutputFiles) != 501 || slices.Contains(names(res), indexName) || len(res.Images) > 0 {
		t.Errorf("%d files, %d previews", len(res.OutputFiles), len(res.Images))
	}
	if notes := strings.Join(res.Notes, "\n"); strings.Contains(notes, "not listed") || strings.Contains(notes, "no preview") {
		t.Errorf("notes: %q", notes)
	}
}

// A list that is short enough is left as it is.
func TestFewFiles(t *testing.T) {
	res := newBench(t).must(t, bash(`cd output; for i in {10..49}; do printf '\0' >$i; done`))
	if len(res.OutputFiles) != 40 || len(res.Notes) != 0 {
		t.Errorf("%d files, notes %q", len(res.OutputFiles), res.Notes)
	}
}

// The script's own file of that name keeps it.
func TestIndexNameTaken(t *testing.T) {
	b := newBench(t)
	res := b.must(t, bash(`cd output; for i in {100..399}; do printf '\0' >$i; done; echo mine >output_files.json`))
	if _, data := b.file(t, res, indexName); string(data) != "mine\n" {
		t.Errorf("the script's file: %.100q", data)
	}
	if _, data := b.file(t, res, "output_files-2.json"); !bytes.Contains(data, []byte(`"output_files.json"`)) {
		t.Errorf("the list of all: %.100q", data)
	}
	wantNote(t, res, "all are listed in output_files-2.json")
}

// Names are a script's to choose: however long and odd, the list is bounded.
func TestHostileNames(t *testing.T) {
	b := newBench(t)
	res := b.must(t, bash(`cd output
long=$(printf '\001%.0s' {1..250}); deep=$long/$long/$long/$long
mkdir -p $deep
for i in {10..99}; do echo text >$deep/$i; echo text >$deep/$i.png; printf '\0' >$i$long; done`))
	if n := listed(t, res); n > listBytes {
		t.Errorf("%d files are listed in %d bytes, want up to %d", len(res.OutputFiles), n, listBytes)
	}
	if n := len(strings.Join(res.Notes, "")); n > 1000 {
		t.Errorf("%d bytes of notes", n)
	}
	var all []File
	_, data := b.file(t, res, indexName)
	if err := json.Unmarshal(data, &all); err != nil || len(all) != 270 {
		t.Errorf("%d files in the list of all, %v", len(all), err)
	}
}

func TestIndexNotKept(t *testing.T) {
	b := newBench(t, func(o *Options) {
		o.Store = &faultyStore{Store: o.Store, name: indexName, err: errors.New("disk on fire")}
	})
	res := b.must(t, bash(`cd output; for i in {100..399}; do printf '\0' >$i; done`))
	if n := listed(t, res); n > listBytes || !res.Success {
		t.Errorf("%d bytes of %d files", n, len(res.OutputFiles))
	}
	wantNote(t, res, "of 300 output files are not listed here; the list of all could not be kept")
	if !strings.Contains(b.log.String(), "disk on fire") {
		t.Error("the log does not say why")
	}
}

// The list of all is kept though the run's files have used up their bytes.
func TestIndexBeyondLimit(t *testing.T) {
	b := newBench(t, func(o *Options) { o.MaxRunBytes, o.MaxFileBytes = 300, 1 })
	res := b.must(t, bash(`cd output; for i in {100..399}; do printf '\0' >$i; done`))
	if f, _ := b.file(t, res, indexName); f.Bytes < 300 {
		t.Errorf("%+v", f)
	}
}

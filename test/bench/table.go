package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table is a Markdown table that can be read as it is.
type table struct {
	numbers bool       // all columns but the first are numbers
	rows    [][]string // the first is the header
}

// figures returns a table of numbers.
func figures(header ...string) table { return table{numbers: true, rows: [][]string{header}} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write prints the table with columns as wide as they need.
func (t *table) write(out io.Writer) {
	width := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for n, row := range t.rows {
		for i, cell := range row {
			fill := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if t.numbers && i > 0 {
				cell, fill = fill, cell
			}
			fmt.Fprintf(out, "| %s%s ", cell, fill)
		}
		fmt.Fprintln(out, "|")
		if n == 0 {
			t.rule(out, width)
		}
	}
	fmt.Fprintln(out)
}

// rule prints the line below the header, which says how columns are aligned.
func (t *table) rule(out io.Writer, width []int) {
	for i, w := range width {
		line := strings.Repeat("-", w+2)
		if t.numbers && i > 0 {
			line = line[1:] + ":"
		}
		fmt.Fprint(out, "|"+line)
	}
	fmt.Fprintln(out, "|")
}

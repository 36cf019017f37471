package test

// Real work in every runtime, with its outputs checked.
//
// A case is a directory testdata/runtimes/RUNTIME/CASE with
//
//	main.EXT   the script, EXT being the runtime's extension
//	input/     the run's input files, if any, with sub-directories
//	stdin      the run's standard input, if any
//	want.toml  what must come of it
//
// and want.toml holds, all of it optional:
//
//	returncode = 0             as the result has it
//	stdout = "all of it\n"     exactly
//	stdout_match = ['^a', 'b'] regular expressions that it matches somewhere
//	stderr = ""                likewise
//	stderr_match = []
//	error_match = []           of the result's error
//	notes_match = []           of the result's notes, one a line
//	number = [{match = 'slope (\S+)', value = 2.5, tolerance = 0.01}]
//	                           the first group, found in stdout, is about value
//	varies = ['\d+ ms']        what need not be equal in two runs, in text
//
//	[[file]]                   an output file; these, and no others, come back
//	name = "plot.pdf"          a path below output
//	width = 640                of a picture, in pixels;
//	height = 480               of a PDF's first page, in points
//	colours = 3                that a picture has at least, so that it is not
//	                           blank; of a PDF's pages, drawn; 2 if absent
//	pages = 1                  of a PDF
//	show = 'gdalinfo "$1"'     a command whose output is the file's text; it
//	                           runs in a sandbox of its own, as Bash
//	match = ['^Type: Float32'] regular expressions that the text matches
//	number = []                as above, found in the text
//
// The text of a PDF is what pdftotext makes of it, that of other files what
// is in them. Pictures are PNG, JPEG and GIF. In regular expressions ^ and $
// are the ends of lines.
//
// Every case runs cold, and if its runtime can start early also warm; both
// must come out as wanted, and as one another.

# Prints the first errors of a log that was made with -file-line-error: where,
# what, and the lines of the source around it. Ends with 1 if there is none. In
# the locale C: a log need not be valid UTF-8.

BEGIN { most = 5 }

# show prints the lines around a line of a file, with a mark where TeX had
# come to in it.
function show(file, line, column,   n, text) {
	while ((getline text < file) > 0) {
		if (++n < line - 1) continue
		if (n > line + 1) break
		printf "  %s %4d | %s\n", n == line ? ">" : " ", n, substr(text, 1, 200)
		if (n == line && column > 0 && column < length(text)) printf "         | %*s\n", column, "^"
	}
	close(file)
}

# nth is a line of the document.
function nth(line,   n, text) {
	while (n < line && (getline text < doc) > 0) n++
	close(doc)
	return n == line ? text : ""
}

# find is the first line of the document that has a name outside a comment.
function find(name,   n, text, found) {
	while (!found && (getline text < doc) > 0) {
		n++
		sub(/(^|[^\\])%.*/, "", text)
		if (index(text, name)) found = n
	}
	close(doc)
	return found
}

# base is the name of a file without directory and extension.
function base(path) {
	sub(/.*\//, "", path)
	sub(/\.[a-z]+$/, "", path)
	return path
}

function readable(file,   text, ok) {
	ok = (getline text < file) >= 0
	close(file)
	return ok
}

# place improves on where TeX says an error is: a missing file is noticed a
# line later, and an error in an installed package concerns who uses it.
function place(   name, at) {
	if (message ~ /Error: File .* not found/) {
		name = message
		sub(/^[^`']*[`']/, "", name)
		sub(/'.*/, "", name)
	} else if (file ~ /^\//) {
		name = file
	} else return
	if (!(at = find(base(name)))) return
	if (file ~ /^\//) message = message " (" file ":" line ")"
	if (file == "" || file ~ /^\//) file = doc
	if (file == doc && line != at) { line = at; column = 0 }
}

# finish prints the error that has been read.
function finish() {
	if (message == "") return
	if (message ~ /no legal .end found/) { message = "the document ends without \\end{document}"; file = "" }
	gsub(/  +/, " ", message)
	place()
	if (known[file, line, column, message]++) { message = context = ""; return }
	if (++count <= most) {
		print (file == "" ? doc ": " : file ":" line ": ") message
		printf "%s", context
		if (file != "") show(file, line, column)
	}
	if (message ~ /requires either XeTeX or|Unicode character .* not set up/) advice = 1
	message = context = ""
}

# start begins a new error.
function start(text) {
	finish()
	file = line = ""
	column = 0
	message = text
	open = NR # the last line that belongs to the message
	if (runaway != "") context = "  runaway: " substr(runaway, 1, 200) "\n"
	runaway = ""
}

/^Runaway / { getline runaway; next }

/^! / { start(substr($0, 3)) }
/^\[\\.*\]:[0-9]+: / { start($0) } # of Lua, without the file

/^[^:]+:[0-9]+: / {
	split($0, part, ":")
	if (readable(part[1])) {
		start(substr($0, length(part[1] part[2]) + 4))
		file = part[1]
		line = part[2]
		sub(/^\.\//, "", file)
		sub(/^\/sandbox\//, "", file)
	}
}

# What ends a run after an error says nothing new.
message ~ /^ ==> Fatal/ || (count && message ~ /^Emergency stop/) { message = "" }

message == "" { next }

# The rest of a message, in the forms of packages and of LaTeX, and why TeX
# gave up.
open == NR - 1 && (sub(/^\([a-zA-Z0-9_.-]+\)  +/, " ") || /^          +[^ ]/) { message = message $0; open = NR }
/^\*\*\* \(/ { message = message " " substr($0, 5) }

# Where in a macro it was.
/^\\.*->/ { context = context "  " $0 "\n" }

# l.5 and the line up to where TeX had come
/^l\.[0-9]+ / {
	number = substr($1, 3)
	sub(/^l\.[0-9]+ /, "")
	if (file == "" && index(nth(number), $0) == 1) { file = doc; line = number }
	cut = /^\.\.\./
	gsub(/[\200-\277]/, "") # all bytes of a character but the first
	column = cut ? 0 : length($0)
	finish()
}

END {
	finish()
	if (count > most) print "and " count - most " more"
	if (advice) print "XeLaTeX and LuaLaTeX take any character and font: begin the document with % !TEX program = xelatex"
	exit !count
}

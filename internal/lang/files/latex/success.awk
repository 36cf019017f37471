# Prints what to know of a document that was made, from its log.

function add(list, name) {
	if (index(", " list ", ", ", " name ", ")) return list
	return list (list == "" ? "" : ", ") name
}

# quoted is the text in TeX's quotes: `name' or 'name'.
function quoted(text) {
	sub(/^[^`']*[`']/, "", text)
	sub(/'.*/, "", text)
	return text
}

/^Output written on / && match($0, /\([0-9]+ pages?/) { pages = substr($0, RSTART + 1, RLENGTH - 1) }
/Warning: Citation .* undefined/ { citations = add(citations, quoted($0)) }
/Warning: Reference .* undefined/ { references = add(references, quoted($0)) }
/Warning: Label .* multiply defined/ { labels = add(labels, quoted($0)) }
/^Missing character: / { if (!missing++) first = substr($0, 20) }

END {
	print pdf ": " pages " by " engine " in " passes (passes == 1 ? " pass" : " passes")
	if (citations != "") print "undefined citations: " citations
	if (references != "") print "undefined references: " references
	if (labels != "") print "labels defined more than once: " labels
	if (missing) print "characters that are in no font and were left out: " missing "; the first: " first
}

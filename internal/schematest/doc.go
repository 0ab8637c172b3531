// Package schematest holds package agenttool against JSON Schema: the schemas
// of its tools are schemas, strict ones obey what strict modes demand, what
// they allow is what the tools take, and the Data of every answer is of the
// shape in testdata. It has no code of its own, and is a module of its own, so
// that the validator is nobody's dependency.
package schematest

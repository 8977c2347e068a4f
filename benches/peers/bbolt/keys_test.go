package main

import (
	"bytes"
	"testing"
)

// The numbers in src/bin/pages/keys.rs: both programs must put the same.
func TestTheSameAsInRust(t *testing.T) {
	if got := newChance(1).next(); got != 13830413928045401970 {
		t.Errorf("chance: %d", got)
	}
	got := newValues().value(7, 3, 24)
	if !bytes.Equal(got[16:], []byte{36, 45, 138, 87, 116, 242, 126, 221}) {
		t.Errorf("value: %v", got[16:])
	}
	if err := newValues().prove(key(7), newValues().value(7, 3, 150)); err != nil {
		t.Error(err)
	}
	if newValues().prove(key(8), newValues().value(7, 3, 150)) == nil {
		t.Error("another key's value is taken for right")
	}
}

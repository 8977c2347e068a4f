// Keys, values and chance, the same as in src/bin/pages/keys.rs.

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
)

const (
	keyBytes  = 24
	headBytes = 16
	poolBytes = 128 << 10
	golden    = 0x9e3779b97f4a7c15
)

// key is the key with this number; numbers are scattered evenly over all keys.
func key(number uint64) []byte {
	scattered := number * golden
	key := make([]byte, 0, keyBytes)
	key = binary.BigEndian.AppendUint64(key, scattered)
	key = binary.BigEndian.AppendUint64(key, bits.RotateLeft64(scattered, 32))
	return binary.BigEndian.AppendUint64(key, number)
}

// keyInOrder is the key with this number, in the order of numbers.
func keyInOrder(number uint64) []byte {
	key := make([]byte, keyBytes)
	binary.BigEndian.PutUint64(key, number)
	binary.BigEndian.PutUint64(key[16:], number)
	return key
}

// values makes values that nothing can compress, and knows them again.
type values struct {
	pool []byte
}

func newValues() *values {
	chance := newChance(1)
	pool := make([]byte, 0, poolBytes)
	for range poolBytes / 8 {
		pool = binary.LittleEndian.AppendUint64(pool, chance.next())
	}
	return &values{pool}
}

// value is a new slice each time: bbolt holds on to it until the commit.
func (v *values) value(number, version uint64, size int) []byte {
	body := size - headBytes
	from := mix(number^bits.RotateLeft64(version, 32)) % uint64(poolBytes-body)
	value := make([]byte, 0, size)
	value = binary.LittleEndian.AppendUint64(value, number)
	value = binary.LittleEndian.AppendUint64(value, version)
	return append(value, v.pool[from:from+uint64(body)]...)
}

func (v *values) prove(key, value []byte) error {
	if len(key) != keyBytes || len(value) < headBytes {
		return fmt.Errorf("a key of %d bytes, a value of %d", len(key), len(value))
	}
	number := binary.BigEndian.Uint64(key[16:])
	version := binary.LittleEndian.Uint64(value[8:])
	if !bytes.Equal(v.value(number, version, len(value)), value) {
		return fmt.Errorf("the value of key %d is not what was put", number)
	}
	return nil
}

// chance is a stream of numbers that look random; the same from the same seed.
type chance struct {
	state uint64
}

func newChance(seed uint64) *chance {
	return &chance{mix(seed)}
}

func (c *chance) next() uint64 {
	c.state += golden
	return mix(c.state)
}

func (c *chance) below(end uint64) uint64 {
	return c.next() % end
}

// mix is splitmix64.
func mix(number uint64) uint64 {
	number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9
	number = (number ^ (number >> 27)) * 0x94d049bb133111eb
	return number ^ (number >> 31)
}

(* Inner products over a real field: bilinear, symmetric, and x x not negative. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Record inner_product (R : realFieldType) (E : lmodType R) := InnerProduct {
  dot :> E -> E -> R;
  dot_sym : forall x y, dot x y = dot y x;
  dot_addl : forall x y z, dot (x + y) z = dot x z + dot y z;
  dot_scalel : forall c x y, dot (c *: x) y = c * dot x y;
  dot_ge0 : forall x, 0 <= dot x x
}.

Section InnerProduct.
Variables (R : realFieldType) (E : lmodType R) (D : inner_product E).

Lemma dot_addr x y z : D x (y + z) = D x y + D x z.
Proof. by rewrite dot_sym dot_addl !(dot_sym D x). Qed.

Lemma dot_scaler c x y : D x (c *: y) = c * D x y.
Proof. by rewrite dot_sym dot_scalel dot_sym. Qed.

Lemma dot_oppl x y : D (- x) y = - D x y.
Proof. by rewrite -scaleN1r dot_scalel mulN1r. Qed.

Lemma dot_oppr x y : D x (- y) = - D x y.
Proof. by rewrite dot_sym dot_oppl dot_sym. Qed.

Lemma dot_zerol y : D 0 y = 0.
Proof. by rewrite -(scale0r (0 : E)) dot_scalel mul0r. Qed.

Lemma dot_zeror x : D x 0 = 0.
Proof. by rewrite dot_sym dot_zerol. Qed.

Lemma dot_suml (I : Type) (r : seq I) (P : pred I) (f : I -> E) y :
  D (\sum_(i <- r | P i) f i) y = \sum_(i <- r | P i) D (f i) y.
Proof. exact: (big_morph (fun x => D x y) (fun x z => dot_addl D x z y) (dot_zerol y)). Qed.

Lemma dot_sumr (I : Type) (r : seq I) (P : pred I) (f : I -> E) x :
  D x (\sum_(i <- r | P i) f i) = \sum_(i <- r | P i) D x (f i).
Proof. by rewrite dot_sym dot_suml; apply: eq_bigr => i _; exact: dot_sym. Qed.

(* Cauchy and Schwarz. *)
Lemma dot_square x y : D x y ^+ 2 <= D x x * D y y.
Proof.
have all_ge0 c : 0 <= D x x - 2%:R * c * D x y + c ^+ 2 * D y y.
  have := dot_ge0 D (x - c *: y).
  rewrite dot_addl !dot_addr !dot_oppl !dot_oppr !dot_scalel !dot_scaler (dot_sym D y x).
  by congr (is_true (0 <= _)); ring.
have [y0 | y_neq0] := eqVneq (D y y) 0; last first.
  have y_gt0 : 0 < D y y by rewrite lt0r y_neq0 dot_ge0.
  rewrite -subr_ge0; have := mulr_ge0 (ltW y_gt0) (all_ge0 (D x y / D y y)).
  by congr (is_true (0 <= _)); field.
rewrite y0 mulr0; have [-> | xy0] := eqVneq (D x y) 0; first by rewrite expr0n.
have := all_ge0 ((D x x + 1) / (2%:R * D x y)); rewrite y0 mulr0 addr0 leNgt (_ : _ - _ = -1) ?ltrN10 //.
by field.
Qed.
End InnerProduct.
